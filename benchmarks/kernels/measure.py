"""Times one call on a GPU and relates it to the hardware's limit; one JSON row per point.

Used by the benches of this folder. A point is checked against its oracle before it is timed. The call is replayed as a CUDA graph,
after the L2 cache has been flushed; compile time stays out.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.machine import machine

PEAK_GB_S = 4187
"""Device copy of one H200, bytes read and written."""

PEAK_TFLOP_S = 770
"""bf16 product 8192³ on random data, one H200."""

WARM_UPS, REPEATS = 3, 20


@dataclass(frozen=True)
class Point:
    """One call to time.

    Attributes:
        bench: name of the operation.
        parameters: what tells this point from the others of the bench.
        call: the operation, on inputs that are ready.
        check: compares the call's output with the oracle's and raises.
        num_bytes: the fewest bytes that must move, each input and output once.
        num_flops: operations, where they and not the bytes are the limit.
    """

    bench: str
    parameters: dict[str, Any]
    call: Callable[[], None]
    check: Callable[[], None]
    num_bytes: float
    num_flops: float | None = None


Points = Iterator[Point]


def measure(point: Point, commit: str) -> dict[str, Any]:
    """The point's row."""
    point.check()
    times_us = time_graph(point.call)
    median_us = statistics.median(times_us)
    row = {
        "bench": point.bench,
        **point.parameters,
        "median_us": round(median_us, 2),
        "min_us": round(min(times_us), 2),
        "max_us": round(max(times_us), 2),
        "gb_s": round(point.num_bytes / median_us / 1e3, 1),
        "share_of_peak": round(point.num_bytes / median_us / 1e3 / PEAK_GB_S, 3),
    }
    if point.num_flops is not None:
        row["tflop_s"] = round(point.num_flops / median_us / 1e6, 1)
        row["share_of_peak"] = round(point.num_flops / median_us / 1e6 / PEAK_TFLOP_S, 3)
    return row | {"warm_ups": WARM_UPS, "repeats": REPEATS} | machine() | {"commit": commit}


def time_graph(call: Callable[[], None]) -> list[float]:
    """Microseconds of each replay."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    flushed = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(WARM_UPS + REPEATS)]
    for start, end in events:
        flushed.zero_()
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in events[WARM_UPS:]]


def assert_near(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Relative error in the 2-norm below 1 %: what bf16 operands cost. NaN never passes."""
    error = ((out.float() - expected.float()).norm() / expected.float().norm()).item()
    if not error < 1e-2:
        raise AssertionError(f"relative error {error}")
