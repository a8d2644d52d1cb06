"""What the engine's start checks and prints before it serves."""

import pytest

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
