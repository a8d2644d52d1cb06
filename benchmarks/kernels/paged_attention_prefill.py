"""`paged_attention_prefill` of whole prompts, of a chunk after a long past, and of many short prompts."""

import numpy as np
import torch

from benchmarks.kernels.attention_inputs import BLOCK_SIZE, DIM, HEADS, make_inputs
from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.paged_attention_prefill import paged_attention_prefill
from services.generator.kernels.query_tiles import max_query_tiles, query_tiles

SIZES = ((1, 2048, 2048), (4, 2048, 2048), (1, 8192, 512), (64, 128, 128))
"""(rows, keys of each, queries of each)."""


def points() -> Points:
    """One per size."""
    for num_rows, context, num_queries in SIZES:
        yield _point(num_rows, context, num_queries)


def _point(num_rows: int, context: int, num_queries: int) -> Point:
    inputs = make_inputs(num_rows, context, num_queries)
    lens = np.full(num_rows, num_queries, np.int32)
    num_tiles = max_query_tiles(num_rows * num_queries, num_rows)
    tiles = torch.from_numpy(query_tiles(np.full_like(lens, context), lens, num_tiles)).cuda()
    cu_query_lens = torch.arange(num_rows + 1, dtype=torch.int32, device="cuda") * num_queries

    own = inputs.own(num_queries)

    def call() -> None:
        caches = inputs.keys, inputs.values, inputs.block_table, inputs.context_lens
        paged_attention_prefill(inputs.out, inputs.query, *own, *caches, cu_query_lens, tiles, block_size=BLOCK_SIZE)

    def check() -> None:
        call()
        for row in {0, num_rows - 1}:
            assert_near(inputs.out[row * num_queries :][:num_queries], inputs.expected(row, num_queries))

    seen = num_queries * (context - num_queries) + num_queries * (num_queries + 1) // 2
    num_flops = 4 * num_rows * seen * HEADS * DIM
    parameters = {"rows": num_rows, "context": context, "queries": num_queries}
    num_bytes = 2 * inputs.query.nbytes + inputs.keys.nbytes + inputs.values.nbytes
    return Point("paged_attention_prefill", parameters, call, check, num_bytes, num_flops)
