"""What fits on a GPU, reckoned from a device that is played here: its numbers are known, so the answer is."""

import pytest
import torch

from services.generator.core.specs import SchedulerLimits
from services.generator.engine.device_memory import (
    FEWER_BLOCKS,
    SPARE_BYTES,
    check_cache_fits,
    check_weights_fit,
    measure_memory,
    must_fit,
    reckon_graphs,
)
from services.generator.runner.graph_shapes import GraphShapes
from services.generator.runner.lora_shape import LoraShapes
from shared.modeling.config import read_decoder_config
from shared.modeling.decoder_loader import decoder_bytes, load_decoder
from shared.settings.errors import StartError
from shared.settings.model_folder import read_json
from tests.shared.modeling.tiny_decoder import FAMILIES, save_tiny

GIB = 2**30
TOTAL, OTHERS, WEIGHTS = 80 * GIB, 3 * GIB, 16 * GIB


class Device:
    """A GPU on which others hold 3 GiB and this process has 16 GiB of weights; its allocator keeps nothing in reserve."""

    def __init__(self, monkeypatch):
        self.own = self.peak = WEIGHTS
        self.graphs = 0
        self.captured = []
        replaced = {
            "empty_cache": lambda: None,
            "synchronize": lambda: None,
            "reset_peak_memory_stats": self.forget_peak,
            "max_memory_allocated": lambda: self.peak,
            "memory_reserved": lambda: self.own,
            "mem_get_info": lambda: (TOTAL - OTHERS - self.own - self.graphs, TOTAL),
        }
        for name, function in replaced.items():
            monkeypatch.setattr(torch.cuda, name, function)

    def forget_peak(self):
        self.peak = self.own

    def step(self):
        self.peak = self.own + 5 * GIB

    def capture(self, shapes):
        """As the driver sees it, whatever the allocator says: 1 MiB for each token of the largest, and 3 MiB for each graph."""
        self.captured += shapes
        self.graphs = max(shape.num_tokens for shape in self.captured) * 2**20 + len(self.captured) * 3 * 2**20


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


@pytest.mark.parametrize("graphs", [7 * GIB, 0])
def test_blocks_fill_what_others_the_largest_step_and_the_graphs_leave(device, graphs):
    measured = measure_memory(device.step, lambda: graphs, 2**20, 0.9)
    left = 72 * GIB - OTHERS - WEIGHTS - 5 * GIB - graphs - SPARE_BYTES
    assert measured == (left // 2**20, graphs)


def test_graphs_that_leave_nothing_are_named_with_what_is_missing(device):
    utilization = (OTHERS + WEIGHTS + 5 * GIB + 7 * GIB + SPARE_BYTES - GIB) / TOTAL
    with pytest.raises(
        StartError, match=r"take 21.00 GiB .* the graphs 7.00, so that 1.50 GiB are missing for a KV cache"
    ):
        measure_memory(device.step, lambda: 7 * GIB, GIB // 2, utilization)


def test_a_step_that_does_not_fit_is_an_error_of_the_start(device):
    def step():
        raise torch.OutOfMemoryError("Tried to allocate 9.00 GiB")

    with pytest.raises(
        StartError, match=r"largest step does not fit .*Tried to allocate 9.00 GiB.*lower --max-num-batched"
    ):
        measure_memory(step, lambda: 0, 2**20, 0.9)


def test_what_runs_out_of_memory_before_any_step_is_an_error_of_the_start():
    with (
        pytest.raises(StartError, match=r"adapters do not fit: .* 9.00 GiB; .*--max-loras"),
        must_fit("adapters do not fit"),
    ):
        raise torch.OutOfMemoryError("Tried to allocate 9.00 GiB")


def capture_without_memory():
    try:
        raise torch.OutOfMemoryError("Tried to allocate 1.00 GiB")
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_a_capture_that_runs_out_of_memory_may_end_with_another_error():
    reason = r"graphs do not fit: Tried .* 1.00 GiB; lower --gpu-memory-utilization"
    with pytest.raises(StartError, match=reason), must_fit("graphs do not fit", FEWER_BLOCKS):
        capture_without_memory()


def test_what_is_no_lack_of_memory_is_left_as_it_is():
    with pytest.raises(RuntimeError, match="an illegal memory access"), must_fit("graphs do not fit"):
        raise RuntimeError("an illegal memory access")


@pytest.mark.parametrize("lora", [None, LoraShapes(64, 16)])
@pytest.mark.parametrize(("max_rows", "max_tokens"), [(1, 1), (1, 16), (256, 8192), (2048, 8192)])
def test_a_few_graphs_say_what_all_will_take(device, lora, max_rows, max_tokens):
    shapes = GraphShapes(SchedulerLimits(max_rows, max_tokens, 64, 100), lora)
    reckoned = reckon_graphs(device.capture, shapes.sample())
    assert len(device.captured) <= 8
    device.captured = []
    device.capture(shapes.all)
    assert reckoned == device.graphs


def test_blocks_that_were_asked_for_and_do_not_fit_are_refused_with_how_many_would(device):
    free = TOTAL - OTHERS - WEIGHTS
    check_cache_fits(free // 2**20, 2**20)
    with pytest.raises(
        StartError,
        match=r"--num-gpu-blocks-override 64512: .* take 63.00 GiB, 2.00 GiB more than are free .* 62464 fit at most",
    ):
        check_cache_fits(free // 2**20 + 2048, 2**20)


@pytest.mark.parametrize(("utilization", "missing"), [(1.0, "7.00"), (0.5, "28.00")])
def test_weights_that_do_not_fit_are_refused_before_they_are_read(device, utilization, missing):
    free = TOTAL - OTHERS - WEIGHTS
    check_weights_fit(min(free, TOTAL // 2), utilization)
    with pytest.raises(StartError, match=f"weights take 68.00 GiB, {missing} GiB more than there are"):
        check_weights_fit(free + 7 * GIB, utilization)


@pytest.mark.parametrize("case", ["llama", "llama_tied"])
def test_weights_are_as_large_as_reckoned(tmp_path, case):
    family, changes = FAMILIES[case]
    folder = save_tiny(tmp_path, family, **changes)
    config = read_decoder_config(read_json(folder / "config.json"))
    loaded = load_decoder(folder, config, torch.float32, torch.device("cpu"))
    assert decoder_bytes(config, torch.float32) == loaded.num_bytes
