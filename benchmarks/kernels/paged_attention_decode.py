"""`paged_attention_decode` from one long row to many short ones."""

import torch

from benchmarks.kernels.attention_inputs import BLOCK_SIZE, DIM, HEADS, KV_HEADS, make_inputs
from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.paged_attention_decode import num_splits, paged_attention_decode

SIZES = ((1, 192), (1, 8192), (1, 131072), (8, 192), (32, 192), (64, 192), (64, 4096), (256, 192), (256, 1024))
"""(rows, keys of each)."""


def points() -> Points:
    """One per size."""
    for num_rows, context in SIZES:
        yield _point(num_rows, context)


def _point(num_rows: int, context: int) -> Point:
    inputs, splits = make_inputs(num_rows, context, 1), num_splits(num_rows, KV_HEADS)
    parts = torch.empty(num_rows, HEADS, splits, DIM, device="cuda")
    lse = torch.empty(num_rows, HEADS, splits, device="cuda")

    def call() -> None:
        caches = inputs.keys, inputs.values, inputs.block_table, inputs.context_lens
        paged_attention_decode(inputs.out, parts, lse, inputs.query, *caches, block_size=BLOCK_SIZE)

    def check() -> None:
        call()
        for row in {0, num_rows - 1}:
            assert_near(inputs.out[row : row + 1], inputs.expected(row, 1))

    num_bytes = 2 * num_rows * context * KV_HEADS * DIM * 2 + 2 * inputs.query.nbytes
    return Point("paged_attention_decode", {"rows": num_rows, "context": context}, call, check, num_bytes)
