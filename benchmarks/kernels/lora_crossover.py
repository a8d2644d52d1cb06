"""Where a program per row gives way to tiles of 16 and of 64 rows: a layer's LoRA launches, by rank, adapters and rows of each.

A sweep, for choosing `CHUNK_SIZES`; the row of the production table's own choice says so.
"""

from itertools import product

from benchmarks.kernels.lora_inputs import GROUPS, make_inputs
from benchmarks.kernels.lora_step import check
from benchmarks.kernels.measure import Point, Points
from services.generator.kernels.lora_segments import chunk_size_for, chunk_sizes

RANKS = (8, 16, 32, 64)
ADAPTERS = (1, 4, 16, 64)
ROWS_EACH = (1, 2, 4, 8, 16, 32, 64, 128)
MAX_ROWS = 256


def points() -> Points:
    """One per rank, number of adapters, rows of each and chunk size; the bank is made for the rank."""
    for rank, num_adapters, rows_each in product(RANKS, ADAPTERS, ROWS_EACH):
        if num_adapters * rows_each <= MAX_ROWS:
            for chunk_size in chunk_sizes():
                yield _point(rank, num_adapters, rows_each, chunk_size)


def _point(rank: int, num_adapters: int, rows_each: int, chunk_size: int) -> Point:
    num_rows = num_adapters * rows_each
    sizes = {"rank": rank, "max_rank": rank, "chunk_size": chunk_size}
    inputs = [make_inputs(group, (num_rows, num_adapters), **sizes) for group in GROUPS]

    def call() -> None:
        for each in inputs:
            each.shrink()
            each.expand()

    parameters = {
        "rank": rank,
        "adapters": num_adapters,
        "rows_each": rows_each,
        "chunk_size": chunk_size,
        "is_chosen": chunk_size == chunk_size_for(num_rows, num_adapters, rank),
    }
    num_bytes = sum(each.bytes_of_a + each.bytes_of_b for each in inputs)
    return Point("lora_crossover", parameters, call, lambda: check(inputs[0]), num_bytes)
