"""Logits and greedy text against `transformers` on the same weights: tiny random models and the embedded one."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generator.engine.build import build_model
from services.generator.settings import GeneratorSettings
from tests.generator.conftest import save_tiny_llama
from tests.generator.driving import OfflineEngine

VARIANTS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one_kv_head": {"num_key_value_heads": 1},
    "all_kv_heads": {"num_key_value_heads": 4},
    "wide_heads": {"head_dim": 32},
    "other_theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "other_eps": {"rms_norm_eps": 1e-2},
}


def settings_for(folder, **changes):
    return GeneratorSettings(model=str(folder), kv_cache_memory_bytes=2**27, max_model_len=256, **changes)


def our_logits(folder, prompt, chunk):
    """Logits of every position, computed through scheduler and paged cache in chunks of `chunk` tokens."""
    built = build_model(settings_for(folder, max_num_batched_tokens=max(chunk, 16)))
    engine = OfflineEngine(built)
    rows = []
    runner = built.runner

    def keep_all(plan):
        with torch.inference_mode():
            rows.append(runner.logits(runner.forward(runner.prepare(plan))))

    engine.before_step = keep_all
    engine.generate([prompt], max_tokens=1)
    return torch.cat(rows)


def reference(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def assert_logits_equal(ours, theirs):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [16, 256])
def test_logits_of_tiny_models(tmp_path, variant, chunk):
    folder = save_tiny_llama(tmp_path, **VARIANTS[variant])
    prompt = torch.randint(0, 256, (77,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        theirs = reference(folder)(torch.tensor([prompt])).logits[0]
    assert_logits_equal(our_logits(folder, prompt, chunk), theirs)


def test_greedy_text_of_a_tiny_model_over_64_tokens(tiny_llama):
    prompts = [list(range(5 + 7 * n)) for n in range(6)]
    ours = OfflineEngine(build_model(settings_for(tiny_llama))).generate(prompts, max_tokens=64)
    model = reference(tiny_llama)
    for prompt, output in zip(prompts, ours, strict=True):
        assert output == greedy_reference(model, prompt, 64)


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
