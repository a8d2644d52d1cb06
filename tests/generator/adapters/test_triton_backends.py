"""The Triton backends in a whole model: prompts and decode steps, adapters and base rows mixed, against `peft`."""

import os

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generator.core.request import SamplingParams
from services.generator.engine.build import build_model
from services.generator.runner import lora_shape
from services.generator.runner.adapter_bank import SCRATCH_ROWS
from services.generator.settings import LORA_TARGETS, GeneratorSettings
from tests.generator.adapters.conftest import make_adapter, reference_logits
from tests.generator.driving import OfflineEngine
from tests.shared.modeling.tiny_decoder import save_tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="runs with TRITON_INTERPRET=1"),
]

PROMPTS = [[7, 60, 3, 99, 12], [11] * 21, [5, 8]]
NAMES = ["small", None, "large"]
NUM_NEW = 4


@pytest.fixture(scope="module")
def folders(base, tmp_path_factory):
    """An adapter on everything and one on some, of different ranks; embedding and head among them."""
    made = tmp_path_factory.mktemp("adapters")
    small = make_adapter(base, made / "small", r=2, target_modules=["q_proj", "down_proj", "lm_head"])
    return {
        "small": small,
        "large": make_adapter(base, made / "large", seed=1, r=7, target_modules=list(LORA_TARGETS)),
        None: None,
    }


def build(base, folders, **changes):
    lora = [f"{name}={folder}" for name, folder in folders.items() if name]
    return build_model(
        GeneratorSettings(
            model=str(base),
            kv_cache_memory_bytes=2**24,
            max_model_len=64,
            max_num_seqs=4,
            lora=lora,
            lora_targets=list(LORA_TARGETS),
            **changes,
        )
    )


@pytest.mark.parametrize(("most_joined", "max_rank"), [(len(PROMPTS), 8), (16, 7)])
def test_greedy_text_of_a_mixed_batch(base, folders, monkeypatch, most_joined, max_rank):
    """The narrow side of adapters comes from the base products in decode steps, and from a kernel of its own in prompts; or there
    from the products too, whose rows then begin anywhere, since ranks and slots are odd."""
    monkeypatch.setattr(lora_shape, "JOINED_TOKENS", most_joined)
    ranks = {"max_num_batched_tokens": 16, "max_lora_rank": max_rank, "max_loras": 3}
    built = build(base, folders, attention_backend="triton", kernel_backend="triton", **ranks)
    engine = OfflineEngine(built)
    params = [SamplingParams(temperature=0.0, max_tokens=NUM_NEW, logprobs=1) for _ in PROMPTS]
    outputs = engine.generate(PROMPTS, each=params, adapters=NAMES)
    for index, (prompt, name, output) in enumerate(zip(PROMPTS, NAMES, outputs, strict=True)):
        expected = reference_logits(base, folders[name], prompt + output)[len(prompt) - 1 : -1]
        assert output == expected.argmax(dim=-1).tolist()
        chosen = torch.log_softmax(expected.double(), dim=-1).amax(dim=-1)
        ours = torch.tensor([entry.logprob for entry in engine.logprobs[index]], dtype=torch.float64)
        assert (ours - chosen).abs().max() < 1e-4


@pytest.mark.parametrize("head_dim", [10, 12])
def test_heads_that_begin_anywhere(head_dim, tmp_path):
    save_tiny(tmp_path, "llama", head_dim=head_dim, eos_token_id=None)
    built = build(tmp_path, {}, attention_backend="triton", kernel_backend="triton", max_num_batched_tokens=16)
    outputs = OfflineEngine(built).generate(PROMPTS, max_tokens=NUM_NEW)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        assert output == logits.argmax(dim=-1).tolist()


def test_what_is_drawn_is_what_the_reference_backends_draw(base, folders):
    changes = [{"seed": 5}, {"seed": 6, "top_p": 0.8, "logit_bias": {9: 2.0}}, {"seed": 7, "top_k": 20, "min_p": 0.01}]
    params = [SamplingParams(temperature=0.9, max_tokens=NUM_NEW, **each) for each in changes]
    drawn = []
    for backend in ("triton", "reference"):
        built = build(base, folders, attention_backend=backend, kernel_backend=backend, max_lora_rank=8)
        drawn.append(OfflineEngine(built).generate(PROMPTS, each=params, adapters=NAMES))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("chunk_size", [1, 16])
def test_the_parts_of_all_rows_have_room_in_the_bank(chunk_size):
    from services.generator.kernels.lora_shrink import num_shrink_parts  # brings in triton

    for num_rows in range(1, 2 * SCRATCH_ROWS):
        assert num_shrink_parts(num_rows, 1 << 20, chunk_size) * num_rows <= max(num_rows, SCRATCH_ROWS)
