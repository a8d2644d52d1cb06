"""How much KV fits beside everything else on a GPU: measured at start, before the cache is made.

Called by `engine.build`, at start. Makes no cache itself; what other processes take later it cannot know.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from services.generator.engine.memory_budget import GIB
from shared.observability.logging import get_logger
from shared.settings.errors import StartError

log = get_logger(__name__)

SPARE_BYTES = 2**28
"""Kept for what comes later and is not PyTorch's: code of kernels that are loaded when they are first used."""

SMALLER = (
    "raise --gpu-memory-utilization, or lower --max-num-batched-tokens, --max-num-seqs, --max-loras, --max-lora-rank, "
    "--encoder-cache-size or --max-num-encoder-tokens"
)


class MeasuredMemory(NamedTuple):
    """KV blocks that fit, and bytes that the graphs take."""

    num_blocks: int
    graph_bytes: int


def check_weights_fit(num_bytes: int, utilization: float) -> None:
    """Raise StartError, which says by how much, where weights of so many bytes do not fit into what is free now."""
    free, total = torch.cuda.mem_get_info()
    missing = num_bytes - min(free, int(total * utilization))
    if missing > 0:
        raise StartError(
            f"the weights take {num_bytes / GIB:.2f} GiB, {missing / GIB:.2f} GiB more than there are: of the device's "
            f"{total / GIB:.2f} GiB {free / GIB:.2f} are free, and --gpu-memory-utilization is {utilization}"
        )


@contextmanager
def must_fit(complaint: str) -> Iterator[None]:
    """Raise StartError, which begins with `complaint`, where the device's memory runs out within."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise StartError(f"{complaint}: {error}; {SMALLER}") from None


def measure_memory(
    run_largest_step: Callable[[], None],
    capture_graphs: Callable[[], None] | None,
    block_bytes: int,
    utilization: float,
) -> MeasuredMemory:
    """KV blocks that fit beside the largest step and all graphs.

    Args:
        run_largest_step: allocates what the largest step needs beyond what is allocated now, and lets go of it.
        capture_graphs: captures all graphs and keeps them; they are captured again once there is a cache. None where there
            will be none.
        block_bytes: bytes of a block over all layers.
        utilization: share of the device's memory that this process may use.
    Raises:
        StartError: there is no memory left for a single block; says by how much.
    """
    with must_fit("the largest step does not fit beside weights and adapters"):
        peak = _peak_bytes(run_largest_step)
        free, total = torch.cuda.mem_get_info()
        others = total - free - torch.cuda.memory_reserved()  # the driver's own and other processes
        graphs = _kept_bytes(capture_graphs) if capture_graphs else 0
    available = int(total * utilization) - others - peak - graphs - SPARE_BYTES
    parts = {"total": total, "others": others, "peak": peak, "graphs": graphs, "kv": available}
    log.info("memory_measured", **{f"{name}_gib": round(size / GIB, 2) for name, size in parts.items()})
    if available < block_bytes:
        raise StartError(
            f"weights, adapters and the largest step take {peak / GIB:.2f} GiB of the device's {total / GIB:.2f}, the graphs "
            f"{graphs / GIB:.2f}, so that {(block_bytes - available) / GIB:.2f} GiB are missing for a KV cache; {SMALLER}"
        )
    return MeasuredMemory(available // block_bytes, graphs)


def _peak_bytes(run: Callable[[], None]) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.max_memory_allocated()


def _kept_bytes(make: Callable[[], None]) -> int:
    """By which the device's free memory shrinks: PyTorch's pools for graphs, and the driver's own."""
    before, _ = torch.cuda.mem_get_info()
    make()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return max(0, before - torch.cuda.mem_get_info()[0])
