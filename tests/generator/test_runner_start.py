"""The order of a start on a GPU, which is played here: what is measured is gone before the cache comes, and captured once."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from services.generator.core.specs import KVCacheSpec
from services.generator.engine import runner_start
from services.generator.engine.build import build_model
from services.generator.engine.device_memory import SPARE_BYTES
from services.generator.engine.runner_start import RunnerParts
from services.generator.runner.kv_cache_pool import KVCachePool
from services.generator.runner.model_runner import ModelRunner
from services.generator.runner.step_graphs import StepGraphs
from services.generator.settings import GeneratorSettings
from shared.settings.errors import StartError
from tests.fakes.recorder import record

GIB = 2**30
BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # keys and values, layers, slots, heads, their size, fp32
GRAPH_BYTES = 2**20
FREE = 2 * GIB


class PlayedGpu:
    """2 GiB of which are free but for graphs; each graph takes 1 MiB. Writes down what happens, and on which runner."""

    def __init__(self, monkeypatch):
        self.calls = []
        self.runners = weakref.WeakSet()
        self.num_alive = []
        self.num_captured = 0
        monkeypatch.setattr(RunnerParts, "device", SimpleNamespace(type="cuda"))
        monkeypatch.setattr(RunnerParts, "can_replay", True)
        monkeypatch.setattr(RunnerParts, "pool", self.pool)
        monkeypatch.setattr(ModelRunner, "warm_up", lambda runner: self.note("warm_up", runner))
        monkeypatch.setattr(ModelRunner, "run_largest_step", lambda runner: self.note("largest", runner))
        monkeypatch.setattr(StepGraphs, "_capture", self.capture)
        replaced = {
            "empty_cache": lambda: None,
            "synchronize": lambda: None,
            "reset_peak_memory_stats": lambda: None,
            "max_memory_allocated": lambda: 0,
            "memory_reserved": lambda: 0,
            "graph_pool_handle": lambda: None,
            "mem_get_info": lambda: (FREE - GRAPH_BYTES * self.num_captured, FREE),
        }
        for name, function in replaced.items():
            monkeypatch.setattr(torch.cuda, name, function)

    def note(self, what, runner):
        self.runners.add(runner)
        self.calls.append(what)

    def capture(self, compute, layout):
        self.num_captured += 1
        self.calls.append("capture")

    def pool(self, spec):
        self.num_alive.append(len(self.runners))
        self.num_captured = 0
        self.calls.append(f"cache of {spec.num_blocks}")
        return KVCachePool(self.config, KVCacheSpec(1, spec.block_size), torch.float32, torch.device("cpu"))


@pytest.fixture
def gpu(monkeypatch, tiny_llama):
    from shared.modeling.config import read_decoder_config
    from shared.settings.model_folder import read_json

    played = PlayedGpu(monkeypatch)
    played.config = read_decoder_config(read_json(tiny_llama / "config.json"))
    gc.collect()
    gc.disable()  # what is gone is gone at once, as the memory for the cache must be there at once
    yield played
    gc.enable()


def build(folder, **changes):
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "gpu_memory_utilization": 1.0}
    return build_model(GeneratorSettings(model=str(folder), **{**settings, **changes}))


def test_graphs_are_measured_by_some_and_captured_once_with_the_cache(gpu, tiny_llama, monkeypatch):
    logs = record(monkeypatch, runner_start)
    built = build(tiny_llama)
    num_blocks = (FREE - SPARE_BYTES - GRAPH_BYTES * 6) // BLOCK_BYTES
    assert built.ready.num_blocks == num_blocks
    sampled = ["capture"] * 6  # all: of decode rows 1, 2, 4; of prompts 16, 32, 64
    whole = [f"cache of {num_blocks}", *sampled, "largest"]
    assert gpu.calls == ["cache of 1", "warm_up", "largest", *sampled, *whole]
    assert gpu.num_alive == [0, 0]
    (captured,) = [line for line in logs if line["event"] == "graphs_captured"]
    assert captured["num_graphs"] == built.ready.num_graphs == 6
    assert captured["gib"] == captured["reckoned_gib"] == round(6 * GRAPH_BYTES / GIB, 3)


def test_without_graphs_kernels_are_warmed_up_all_the_same(gpu, tiny_llama):
    num_blocks = build(tiny_llama, enforce_eager=True).ready.num_blocks
    assert num_blocks == (FREE - SPARE_BYTES) // BLOCK_BYTES
    assert gpu.calls == ["cache of 1", "warm_up", "largest", f"cache of {num_blocks}", "largest"]


def test_as_many_blocks_as_are_asked_for_are_made_where_they_fit(gpu, tiny_llama, monkeypatch):
    logs = record(monkeypatch, runner_start)
    most = FREE // BLOCK_BYTES
    assert build(tiny_llama, num_gpu_blocks_override=most).ready.num_blocks == most
    assert gpu.calls == ["cache of 1", "warm_up", f"cache of {most}", *["capture"] * 6, "largest"]
    (captured,) = [line for line in logs if line["event"] == "graphs_captured"]
    assert "reckoned_gib" not in captured  # nobody asked what they would take
    with pytest.raises(StartError, match=rf"--num-gpu-blocks-override {most + 1}: .* where {most} fit at most"):
        build(tiny_llama, num_gpu_blocks_override=most + 1)


@pytest.mark.parametrize(
    ("step", "num_blocks", "reason"),
    [
        ("warm_up", 100, "largest step does not fit beside weights and adapters: .*; raise --gpu-memory-utilization"),
        ("capture_graphs", None, "graphs do not fit beside weights and adapters: .*; raise --gpu-memory-utilization"),
        ("capture_graphs", 100, "graphs do not fit beside the KV cache: .*; lower --gpu-memory-utilization"),
        ("run_largest_step", 100, "largest step does not fit beside the KV cache: .*; lower --gpu-memory-utilization"),
    ],
)
def test_what_does_not_fit_ends_the_start_and_is_named(gpu, tiny_llama, monkeypatch, step, num_blocks, reason):
    def fail(*args):
        raise torch.OutOfMemoryError("Tried to allocate 9.00 GiB")

    monkeypatch.setattr(ModelRunner, step, fail)
    with pytest.raises(StartError, match=reason):
        build(tiny_llama, num_gpu_blocks_override=num_blocks)
