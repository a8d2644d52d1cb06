"""What fits on a GPU, reckoned from a device that is played here: its numbers are known, so the answer is."""

import pytest
import torch

from services.generator.engine.device_memory import SPARE_BYTES, check_weights_fit, measure_memory, must_fit
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

    def capture(self):
        self.graphs = 7 * GIB  # as the driver sees it, whatever the allocator says


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


@pytest.mark.parametrize(("has_graphs", "graphs"), [(True, 7 * GIB), (False, 0)])
def test_blocks_fill_what_others_the_largest_step_and_the_graphs_leave(device, has_graphs, graphs):
    measured = measure_memory(device.step, device.capture if has_graphs else None, 2**20, 0.9)
    left = 72 * GIB - OTHERS - WEIGHTS - 5 * GIB - graphs - SPARE_BYTES
    assert measured == (left // 2**20, graphs)


def test_graphs_that_leave_nothing_are_named_with_what_is_missing(device):
    utilization = (OTHERS + WEIGHTS + 5 * GIB + 7 * GIB + SPARE_BYTES - GIB) / TOTAL
    with pytest.raises(
        StartError, match=r"take 21.00 GiB .* the graphs 7.00, so that 1.50 GiB are missing for a KV cache"
    ):
        measure_memory(device.step, device.capture, GIB // 2, utilization)


def test_a_step_that_does_not_fit_is_an_error_of_the_start(device):
    def step():
        raise torch.OutOfMemoryError("Tried to allocate 9.00 GiB")

    with pytest.raises(
        StartError, match=r"largest step does not fit .*Tried to allocate 9.00 GiB.*lower --max-num-batched"
    ):
        measure_memory(step, None, 2**20, 0.9)


def test_what_runs_out_of_memory_before_any_step_is_an_error_of_the_start():
    with (
        pytest.raises(StartError, match=r"adapters do not fit: .* 9.00 GiB; .*--max-loras"),
        must_fit("adapters do not fit"),
    ):
        raise torch.OutOfMemoryError("Tried to allocate 9.00 GiB")


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
