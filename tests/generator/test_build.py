"""What the engine's start checks and prints before it serves."""

import pytest
import torch

from services.generator.engine import build as engine_build
from services.generator.engine.build import build_model
from services.generator.settings import GeneratorSettings
from shared.settings.errors import StartError
from tests.fakes.recorder import record
from tests.shared.modeling.tiny_decoder import FAMILIES, save_tiny


def build(folder, **changes):
    return build_model(GeneratorSettings(model=str(folder), kv_cache_memory_bytes=2**24, **changes))


def test_the_budget_is_one_line_in_gib(tiny_llama, monkeypatch):
    logs = record(monkeypatch, engine_build)
    build(tiny_llama, num_gpu_blocks_override=2**14)
    (budget,) = [line for line in logs if line["event"] == "memory_budget"]
    assert budget["kv_blocks"] == 2**14
    assert budget["kv_tokens"] == 2**18
    assert budget["kv_cache_gib"] == 0.125  # 2 (K, V) · 2 layers · 2 heads · 16 wide · 4 bytes · 2**18 tokens
    assert budget["bank_gib"] == budget["graphs_gib"] == 0
    parts = ("weights_gib", "kv_cache_gib", "bank_gib", "graphs_gib", "activations_gib")
    assert budget["total_gib"] == pytest.approx(sum(budget[part] for part in parts), abs=3e-3)
    assert budget["activations_gib"] > 0


def test_a_cache_that_a_cpu_has_no_memory_for_is_refused(tiny_llama):
    with pytest.raises(StartError, match=r"the KV cache does not fit: .*; lower .*--num-gpu-blocks-override"):
        build(tiny_llama, num_gpu_blocks_override=2**40)


@pytest.mark.parametrize(("rope_type", "case"), [("dynamic", "llama_dynamic"), ("longrope", "llama_longrope")])
def test_scaling_by_the_current_length_is_refused_beyond_the_original_one(tmp_path, rope_type, case):
    family, changes = FAMILIES[case]
    rope = {**changes["rope_parameters"], "original_max_position_embeddings": 128}
    folder = save_tiny(tmp_path, family, rope_parameters=rope)
    for max_model_len in (None, 129, 256):
        with pytest.raises(StartError, match=f"rope scaling {rope_type} .*start with --max-model-len 128"):
            build(folder, max_model_len=max_model_len)
    assert build(folder, max_model_len=128).ready.max_model_len == 128


def test_yarn_may_be_used_to_its_whole_length(tmp_path):
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
    folder = save_tiny(tmp_path, "qwen2", rope_parameters=rope)
    assert build(folder).ready.max_model_len == 1024
    with pytest.raises(StartError, match="--max-model-len 1025 is longer than the model's context of 1024"):
        build(folder, max_model_len=1025)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cuda"}, "--device cuda: torch finds no GPU"),
        ({"attention_backend": "triton"}, "needs a GPU"),
        ({"kernel_backend": "triton"}, "needs a GPU"),
    ],
)
def test_what_could_load_and_run_no_step_does_not_start(tiny_llama, monkeypatch, changes, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(StartError, match=reason):
        build(tiny_llama, **changes)


def test_the_interpreter_of_triton_is_not_trusted_with_bfloat16(tiny_llama, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(StartError, match="bfloat16"):
        build(tiny_llama, attention_backend="triton", dtype="bfloat16")


def test_the_start_says_where_its_time_went(tiny_llama, monkeypatch):
    logs = record(monkeypatch, engine_build)
    build(tiny_llama)
    (times,) = [line for line in logs if line["event"] == "start_times"]
    assert {"weights_s", "adapters_s", "images_s", "kv_cache_s", "prefix_keys_s", "grammars_s", "rest_s"} <= set(times)
