"""Logits and greedy text against `transformers` on the same weights: tiny random models and the embedded one."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generator.engine.build import build_model
from services.generator.settings import GeneratorSettings
from tests.generator.conftest import save_tiny_llama
from tests.generator.driving import OfflineEngine
from tests.shared.modeling.tiny_decoder import FAMILIES, save_tiny

PROMPT = torch.randint(0, 256, (77,), generator=torch.Generator().manual_seed(1)).tolist()
IN_HALF_PRECISION = ["llama", "llama_yarn", "mistral_window", "qwen2", "qwen3", "smollm3"]


def settings_for(folder, **changes):
    return GeneratorSettings(model=str(folder), kv_cache_memory_bytes=2**27, max_model_len=256, **changes)


def our_logits(folder, prompt, chunk, **changes):
    """Logits of every position, computed through scheduler and paged cache in chunks of `chunk` tokens."""
    built = build_model(settings_for(folder, max_num_batched_tokens=chunk, **changes))
    engine = OfflineEngine(built)
    rows = []
    runner = built.runner

    def keep_all(plan):
        with torch.inference_mode():
            rows.append(runner.logits(runner.execute(plan).outputs.hidden))

    engine.before_step = keep_all
    engine.generate([prompt], max_tokens=1)
    return torch.cat(rows)


def reference(folder, dtype="float32"):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def assert_logits_equal(ours, theirs):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.fixture(scope="module", params=FAMILIES)
def family_folder(request, tmp_path_factory):
    family, changes = FAMILIES[request.param]
    return save_tiny(tmp_path_factory.mktemp(request.param), family, **changes)


def test_logits(family_folder):
    with torch.inference_mode():
        theirs = reference(family_folder)(torch.tensor([PROMPT])).logits[0]
    for chunk in (16, 256):
        assert_logits_equal(our_logits(family_folder, PROMPT, chunk), theirs)


def test_greedy_text_over_64_tokens(family_folder):
    prompts = [PROMPT[:length] for length in (5, 33, 77)]
    ours = OfflineEngine(build_model(settings_for(family_folder))).generate(prompts, max_tokens=64)
    model = reference(family_folder)
    for prompt, output in zip(prompts, ours, strict=True):
        assert output == greedy_reference(model, prompt, 64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", IN_HALF_PRECISION)
def test_logits_in_half_precision_are_as_near_to_the_truth_as_the_reference_is(tmp_path, case, dtype):
    family, changes = FAMILIES[case]
    folder = save_tiny(tmp_path, family, **changes)
    with torch.inference_mode():
        truth, theirs = (
            reference(folder, each)(torch.tensor([PROMPT])).logits[0].float() for each in ("float32", dtype)
        )
    ours = our_logits(folder, PROMPT, 256, dtype=dtype)
    our_error, their_error = (ours - truth).abs(), (theirs - truth).abs()
    assert our_error.max() <= 2 * their_error.max()
    assert our_error.mean() <= 1.25 * their_error.mean()


def greedy_reference(model, prompt, num_tokens):
    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return ids[0, len(prompt) :].tolist()


def test_the_older_dialect_of_config_json_means_the_same(tmp_path):
    folder = save_tiny_llama(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    prompt = list(range(40))
    newer = our_logits(folder, prompt, 256)
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(our_logits(folder, prompt, 256), newer)


@pytest.mark.models
def test_logits_of_the_embedded_model(models_dir, smollm_tokenizer):
    folder = models_dir / "smollm2-135m-instruct"
    prompt = smollm_tokenizer.encode(
        "The tide tables on the harbour wall are older than the harbour itself, said Anna."
    )
    with torch.inference_mode():
        theirs = reference(folder)(torch.tensor([prompt])).logits[0]
    assert_logits_equal(our_logits(folder, prompt, 16), theirs)
