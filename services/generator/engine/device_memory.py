"""How much KV fits beside everything else on a GPU: measured at start, before the cache is made.

Called by `engine.build` and `engine.runner_start`, at start. Makes no cache itself; what other processes take later it cannot know.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from services.generator.engine.memory_budget import GIB
from services.generator.runner.graph_shapes import GraphSample
from services.generator.runner.step_layout import StepShape
from shared.observability.logging import get_logger
from shared.settings.errors import StartError

log = get_logger(__name__)

SPARE_BYTES = 2**28
"""Kept for what comes later and is not PyTorch's: code of kernels that are loaded when they are first used."""

SMALLER = (
    "raise --gpu-memory-utilization, or lower --max-num-batched-tokens, --max-num-seqs, --max-loras, --max-lora-rank, "
    "--encoder-cache-size or --max-num-encoder-tokens"
)

FEWER_BLOCKS = (
    "lower --gpu-memory-utilization, on a CPU --kv-cache-memory-bytes, or --num-gpu-blocks-override where it is given"
)


class MeasuredMemory(NamedTuple):
    """KV blocks that fit or were asked for, and bytes that the graphs will take; None where that was not measured."""

    num_blocks: int
    graph_bytes: int | None


def check_weights_fit(num_bytes: int, utilization: float) -> None:
    """Raise StartError, which says by how much, where weights of so many bytes do not fit into what is free now."""
    free, total = torch.cuda.mem_get_info()
    missing = num_bytes - min(free, int(total * utilization))
    if missing > 0:
        raise StartError(
            f"the weights take {num_bytes / GIB:.2f} GiB, {missing / GIB:.2f} GiB more than there are: of the device's "
            f"{total / GIB:.2f} GiB {free / GIB:.2f} are free, and --gpu-memory-utilization is {utilization}"
        )


def check_cache_fits(num_blocks: int, block_bytes: int) -> None:
    """Raise StartError, which says by how much, where the blocks of --num-gpu-blocks-override do not fit into what is free now."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    missing = num_blocks * block_bytes - free
    if missing > 0:
        raise StartError(
            f"--num-gpu-blocks-override {num_blocks}: these KV blocks take {num_blocks * block_bytes / GIB:.2f} GiB, "
            f"{missing / GIB:.2f} GiB more than are free beside weights and adapters, where {free // block_bytes} fit at most"
        )


@contextmanager
def must_fit(complaint: str, remedy: str = SMALLER) -> Iterator[None]:
    """Raise StartError, from `complaint` to `remedy`, where memory runs out within."""
    try:
        yield
    except RuntimeError as error:
        # A capture that runs out of memory may end with an error of its own.
        cause = next((each for each in (error, error.__context__) if _ran_out(each)), None)
        if cause is None:
            raise
        raise StartError(f"{complaint}: {cause}; {remedy}") from None


def _ran_out(error: BaseException | None) -> bool:
    """On a CPU, PyTorch has no type of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def measure_memory(
    run_largest_step: Callable[[], None],
    graph_bytes: Callable[[], int],
    block_bytes: int,
    utilization: float,
) -> MeasuredMemory:
    """KV blocks that fit beside the largest step and all graphs.

    Kernels must have run before: what their code takes counts as taken.

    Args:
        run_largest_step: allocates what the largest step needs beyond what is allocated now, and lets go of it.
        graph_bytes: finds out what graphs will take, see `reckon_graphs`; 0 where there will be none.
        block_bytes: bytes of a block over all layers.
        utilization: share of the device's memory that this process may use.
    Raises:
        StartError: there is no memory left for a single block; says by how much.
    """
    with must_fit("the largest step does not fit beside weights and adapters"):
        peak = _peak_bytes(run_largest_step)
        free, total = torch.cuda.mem_get_info()
        others = total - free - torch.cuda.memory_reserved()  # the driver's own and other processes
    with must_fit("the graphs do not fit beside weights and adapters"):
        graphs = graph_bytes()
    available = int(total * utilization) - others - peak - graphs - SPARE_BYTES
    parts = {"total": total, "others": others, "peak": peak, "graphs": graphs, "kv": available}
    log.info("memory_measured", **{f"{name}_gib": round(size / GIB, 2) for name, size in parts.items()})
    if available < block_bytes:
        raise StartError(
            f"weights, adapters and the largest step take {peak / GIB:.2f} GiB of the device's {total / GIB:.2f}, the graphs "
            f"{graphs / GIB:.2f}, so that {(block_bytes - available) / GIB:.2f} GiB are missing for a KV cache; {SMALLER}"
        )
    return MeasuredMemory(available // block_bytes, graphs)


def reckon_graphs(capture: Callable[[Iterable[StepShape]], None], sample: GraphSample) -> int:
    """Bytes that all graphs will take, from some that are captured, and kept.

    Graphs share one pool of memory, in which a replay overwrites what another left, so that together they need what the largest
    of each kind needs. Each takes something beside it, for its list of kernels: as much as small ones do, which have the same
    list. Captured are so few in place of all, once more, when there is a cache; `engine.runner_start` logs what they took then.

    Args:
        capture: captures graphs of some shapes beside those that it has captured.
    """
    largest = kept_bytes(lambda: capture(sample.largest))
    small = kept_bytes(lambda: capture(sample.small))
    return largest + small + math.ceil(small * sample.num_others / max(1, len(sample.small)))


def kept_bytes(make: Callable[[], None]) -> int:
    """By which the device's free memory shrinks: PyTorch's pools for graphs, and the driver's own."""
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info()
    make()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return max(0, before - torch.cuda.mem_get_info()[0])


def _peak_bytes(run: Callable[[], None]) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.max_memory_allocated()
