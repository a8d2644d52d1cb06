"""Who shares cached keys and values with whom, on a real model: by what an adapter changes, never by what it is called.

Why is shown by the reference library, whose own cache is compared; the engine must share exactly where nothing differs.
"""

import itertools

import pytest
import torch

from services.generator.engine.build import build_model
from services.generator.settings import LORA_TARGETS, GeneratorSettings
from tests.generator.adapters.conftest import ALL, make_adapter, reference_model, reference_tokens
from tests.generator.driving import OfflineEngine
from tests.shared.modeling.tiny_decoder import save_tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
]
LAST = "model.layers.1."
SHARING = [
    "lm_head",
    LAST + "self_attn.q_proj",
    LAST + "self_attn.o_proj",
    LAST + "mlp.gate_proj",
    LAST + "mlp.down_proj",
]
NOT_SHARING = [LAST + "self_attn.k_proj", LAST + "self_attn.v_proj", "model.embed_tokens"]
NOT_SHARING += [f"model.layers.0.{part}" for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj")]
SHARED_TOKENS, PROMPT_LEN = 32, 41  # two blocks, and some more
_seeds = itertools.count()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The base model; an adapter of each module alone; one of all, and a copy of it under another name."""
    root = tmp_path_factory.mktemp("identity")
    save_tiny(root / "base", "llama", eos_token_id=None)
    for seed, module in enumerate(SHARING + NOT_SHARING):
        make_adapter(root / "base", root / module, seed=seed, target_modules=[module])
    make_adapter(root / "base", root / "all", target_modules=ALL)
    make_adapter(root / "base", root / "twin", target_modules=ALL)
    return root


@pytest.fixture(scope="module")
def engine(folders):
    flags = [f"{folder.name}={folder}" for folder in folders.iterdir() if folder.name != "base"]
    settings = {"lora_targets": list(LORA_TARGETS), "max_lora_rank": 4, "num_gpu_blocks_override": 64}
    return OfflineEngine(build_model(GeneratorSettings(model=str(folders / "base"), lora=flags, **settings)))


def fresh_prompt():
    """One that nobody has asked before."""
    return torch.randint(250, (PROMPT_LEN,), generator=torch.Generator().manual_seed(next(_seeds))).tolist()


def run(engine, prompt, adapter, **sampling):
    """The answer, and how many tokens of the prompt came from the cache."""
    before = engine.stats().num_prefix_hit_tokens
    (output,) = engine.generate([prompt], adapters=[adapter], **{"max_tokens": 5, **sampling})
    return output, engine.stats().num_prefix_hit_tokens - before


def reference_kv(folders, adapter, prompt):
    """Keys and values [2 L, Hkv, T, D], and logits [T, V], by the reference library."""
    with torch.inference_mode():
        out = reference_model(folders / "base", adapter and folders / adapter)(torch.tensor([prompt]), use_cache=True)
    layers = out.past_key_values.layers
    return torch.cat([each for layer in layers for each in (layer.keys, layer.values)]), out.logits[0]


@pytest.mark.parametrize("module", SHARING + NOT_SHARING)
def test_an_adapter_shares_with_the_base_model_exactly_where_keys_and_values_are_equal(folders, engine, module):
    """A change of q, o or the MLP below the last layer reaches the next layer's k and v through the hidden state."""
    prompt = fresh_prompt()
    (plain_kv, plain_logits), (kv, logits) = (reference_kv(folders, name, prompt) for name in (None, module))
    assert (logits - plain_logits).abs().max() > 0.01 * plain_logits.abs().max()
    assert torch.equal(kv, plain_kv) == (module in SHARING)
    if module in NOT_SHARING:
        assert (kv - plain_kv).abs().max() > 0.01 * plain_kv.abs().max()
    expected = {name: reference_tokens(folders / "base", name and folders / name, prompt, 5) for name in (None, module)}
    hits = SHARED_TOKENS if module in SHARING else 0
    assert run(engine, prompt, None) == (expected[None], 0)
    assert run(engine, prompt, module) == (expected[module], hits)
    assert run(engine, prompt, module) == (expected[module], SHARED_TOKENS)
    assert run(engine, prompt, None) == (expected[None], SHARED_TOKENS)


def test_equal_weights_under_two_names_share(folders, engine):
    prompt = fresh_prompt()
    expected = reference_tokens(folders / "base", folders / "all", prompt, 5)
    assert [run(engine, prompt, name) for name in ("all", "twin")] == [(expected, 0), (expected, SHARED_TOKENS)]


def test_two_adapters_that_change_no_keys_share_with_each_other(folders, engine):
    prompt = fresh_prompt()
    for number, module in enumerate(SHARING):
        expected = reference_tokens(folders / "base", folders / module, prompt, 5)
        assert run(engine, prompt, module) == (expected, SHARED_TOKENS if number else 0)


def test_prompt_logprobs_do_not_read_what_the_base_model_left_in_the_cache(folders, engine):
    """Sharing keys and values is not sharing logits."""
    prompt = fresh_prompt()
    run(engine, prompt, None)
    assert run(engine, prompt, "lm_head", max_tokens=1, prompt_logprobs=0)[1] == 0
    _, logits = reference_kv(folders, "lm_head", prompt)
    theirs = torch.log_softmax(logits, dim=-1)[torch.arange(PROMPT_LEN - 1), prompt[1:]]
    ours = torch.tensor([entry.logprob for entry in engine.prompt_logprobs[0]])
    assert (ours - theirs).abs().max() <= 1e-4 * logits.abs().max()
