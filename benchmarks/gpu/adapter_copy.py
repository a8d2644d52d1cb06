"""`python -m benchmarks.gpu.adapter_copy`: an adapter's way from a file to a slot, and what it costs those who decode meanwhile.

Needs a CUDA device with 40 GB and the packages of the generator; `--device cpu` tries the same on a tiny model.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.decode import GREEDY, PROMPT_LEN, in_turn, random_prompts
from benchmarks.gpu.model import CONFIG, TINY, write_adapter, write_model
from benchmarks.gpu.start import scratch_folder
from benchmarks.gpu.timing import time_runs
from services.generator.adapters import peft_folder
from services.generator.adapters.modules import AdapterTarget, group_shapes
from services.generator.adapters.packed import PackedAdapter
from services.generator.core.specs import AdapterBankSpec
from services.generator.engine import adapter_loader
from services.generator.llm import LLM
from services.generator.runner.adapter_bank import AdapterBank
from services.generator.runner.model_runner import SampledStep
from shared.modeling.config import read_decoder_config
from shared.modeling.decoder_loader import make_random_decoder

RANK = 16
NUM_ROWS = 32
NUM_STEPS = {"cuda": 800, "cpu": 5}
NUM_DECODING, NUM_NEW = 8, 6
"""Adapters of the rows that decode, and of those that come meanwhile."""
NUM_SPARE_SLOTS, NUM_SPARE_PLACES = 2, 4
"""What there is for the latter: slots, and places in host memory."""
GAP_S = 0.02
SETTINGS = {"load_format": "dummy", "max_num_seqs": 48, "max_model_len": 1024, "gpu_memory_utilization": 0.6}


def main() -> None:
    """All three parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.adapter_copy", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu tries it on a tiny model")
    device = parser.parse_args().device
    config = CONFIG if device == "cuda" else TINY
    with scratch_folder() as folder:
        model = write_model(folder / "model", config)
        adapters = {f"a{i}": write_adapter(folder / f"a{i}", config, RANK, i) for i in range(NUM_DECODING + NUM_NEW)}
        packed = _load(list(adapters.values())[:6], config, device)
        _copy(packed, config, device)
        del packed
        _decode(model, adapters, device)


def _load(folders: list[Path], config: dict[str, Any], device: str) -> list[PackedAdapter]:
    """Files that were just written, so from the page cache; memory is new each time, as all adapters are kept."""
    target = _target(config, device)
    whole, parts, adapters = [], {"digests": [], "pack": []}, []
    with _timed(peft_folder, "digests", parts["digests"]), _timed(peft_folder, "pack", parts["pack"]):
        for folder in folders:
            began = time.perf_counter()
            adapters.append(peft_folder.load_adapter(folder, target))
            whole.append(time.perf_counter() - began)
    rest = [all_of_it - sum(some) for all_of_it, *some in zip(whole, *parts.values(), strict=True)]
    _print("adapter", adapters[0].num_bytes / 1e6, "MB")
    _print("load, s", statistics.median(whole[1:]), f"first {whole[0]:.3f}, goal 0.3")
    _print("  read and check, s", statistics.median(rest[1:]))
    _print("  both digests, s", statistics.median(parts["digests"][1:]))
    _print("  pack into page-locked memory, s", statistics.median(parts["pack"][1:]))
    return adapters


def _copy(adapters: list[PackedAdapter], config: dict[str, Any], device: str) -> None:
    target = _target(config, device)
    num_bytes = adapters[0].num_bytes
    source = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=target.is_pinned)
    out = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    plain = _ms(lambda: out.copy_(source, non_blocking=True), device)
    _print("plain copy of as many bytes, ms", plain, f"{num_bytes / plain / 1e6:.1f} GB/s")
    turns = itertools.cycle(itertools.product(range(NUM_SPARE_SLOTS), adapters))
    for max_rank in (RANK, 4 * RANK):
        weights = make_random_decoder(read_decoder_config(config), target.dtype, torch.device(device))
        bank = AdapterBank(target.banked_stacks(), AdapterBankSpec(NUM_SPARE_SLOTS, max_rank, 16), weights)
        took = _ms(lambda bank=bank: bank.install(*next(turns)), device)
        _print(f"host to a slot of rank {max_rank}, ms", took, f"{num_bytes / took / 1e6:.1f} GB/s")


def _decode(model: Path, adapters: dict[str, Path], device: str) -> None:
    """The same requests come meanwhile, for an adapter that is in a slot, for one copied each time, for one read each time."""
    lora = [f"{name}={folder}" for name, folder in adapters.items()]
    sizes = {"max_loras": NUM_DECODING + NUM_SPARE_SLOTS, "max_cpu_loras": NUM_DECODING + NUM_SPARE_PLACES}
    decoding, new = list(adapters)[:NUM_DECODING], list(adapters)[NUM_DECODING:]
    ways = {"resident": new[:1], "copied": new[: NUM_SPARE_SLOTS + 1], "read": new}
    with LLM(str(model), device=device, lora=lora, max_lora_rank=RANK, **sizes, **SETTINGS) as llm:
        _step_times(llm, decoding, new, NUM_STEPS[device])
        medians: list[float] = []
        for name, names in ways.items():
            times, counts = _step_times(llm, decoding, names, NUM_STEPS[device])
            medians.append(statistics.median(times))
            compared = f"{medians[-1] / medians[0] - 1:+.1%}, goal at most +10 %" if len(medians) > 1 else ""
            tenth = statistics.quantiles(times, n=10)[-1]
            about = f"p90 {tenth:.3f}, mean {statistics.mean(times):.3f}, {counts}; {compared}"
            _print(f"step while others come, {name}, ms", medians[-1], about)


def _step_times(llm: LLM, decoding: list[str], new: list[str], num_steps: int) -> tuple[list[float], str]:
    """Milliseconds between results of steps of `NUM_ROWS` rows, and what was launched and read meanwhile."""
    ends: list[float] = []
    copies: list[float] = []
    reads: list[float] = []
    names = itertools.cycle(new)
    result = SampledStep.result

    def noted(step: SampledStep) -> object:
        value = result(step)
        ends.append(time.perf_counter())
        return value

    with (
        patch.object(SampledStep, "result", noted),
        _timed(AdapterBank, "install", copies),
        _timed(adapter_loader, "load_adapter", reads),
        ThreadPoolExecutor(1) as thread,
    ):
        sampling = {"max_tokens": num_steps, **GREEDY}
        prompts = random_prompts(NUM_ROWS, PROMPT_LEN, TINY["vocab_size"])
        answers = thread.submit(llm.generate, prompts, sampling, lora=in_turn(decoding, NUM_ROWS))
        while not answers.done():
            time.sleep(GAP_S)
            llm.generate(random_prompts(1, 16, TINY["vocab_size"]), {"max_tokens": 1, **GREEDY}, lora=next(names))
    times = [1000 * (after - before) for before, after in itertools.pairwise(ends)]
    return times, f"{len(copies)} copies, {len(reads)} reads"


def _target(config: dict[str, Any], device: str) -> AdapterTarget:
    decoder = read_decoder_config(config)
    return AdapterTarget(
        base_model="model",
        num_layers=decoder.num_layers,
        shapes=group_shapes(decoder),
        max_rank=RANK,
        dtype=torch.bfloat16,
        is_pinned=device == "cuda",
    )


def _ms(call: Callable[[], object], device: str, num_calls: int = 20) -> float:
    """Of one call among many, the device having done all."""

    def work() -> None:
        for _ in range(num_calls):
            call()
        if device == "cuda":
            torch.cuda.synchronize()

    return statistics.median(time_runs(work, 3)) / num_calls * 1000


@contextmanager
def _timed(owner: object, name: str, seconds: list[float]) -> Iterator[None]:
    """Within, a function notes how long each of its calls took."""
    function = getattr(owner, name)

    def timed(*args: object, **options: object) -> object:
        began = time.perf_counter()
        value = function(*args, **options)
        seconds.append(time.perf_counter() - began)
        return value

    with patch.object(owner, name, timed):
        yield


def _print(name: str, value: float, about: str = "") -> None:
    print(f"{name:40} {value:9.3f}   {about}", flush=True)


if __name__ == "__main__":
    main()
