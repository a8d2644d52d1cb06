"""Causal attention of rows of any length over a paged KV cache: whole prompts, chunks of prompts and single tokens in one launch.

Semantics:  out[t, h] = softmax(q[t, h] · K[past of t]ᵀ / √D) V[past of t], the past being the token itself and the `window - 1`
            before it, or all before it; fp32.
Source:     FlashAttention-2, arXiv:2307.08691, §3.1; keys found through a block table, arXiv:2309.06180, §4.1; the query heads that
            share a key head are one tile, arXiv:2305.13245.
Tile map:   program (i, g) attends with the queries of tile i and all query heads of key head g: row m of the product is query
            m // GROUP of the tile and head m % GROUP of the group.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import check_cache, check_dtype, check_floats, check_last_axis, check_shape
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs
from services.generator.kernels.query_tiles import TILE_QUERIES


def paged_attention_prefill(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cu_query_lens: Tensor,
    tiles: Tensor,
    *,
    block_size: int,
    window: int | None = None,
) -> None:
    """Attend with all tokens of the rows.

    Args:
        out: [T, Hq, D] fp16, bf16 or fp32. Mutated.
        query: [T, Hq, D] same dtype; tokens of one row stand together.
        key_cache: [slots, Hkv, D] of one layer, same dtype; the tokens' own keys are written already.
        value_cache: likewise, same strides.
        block_table: [S, blocks] int32: blocks of each row in order of positions.
        context_lens: [S] int32, keys of each row, those of this step included.
        cu_query_lens: [S + 1] int32, where each row's tokens begin in `query`; the last entry is their end.
        tiles: [2, tiles] int32, contiguous, see `query_tiles`. Tokens in no tile are left untouched.
        block_size: positions of a block.
        window: how many keys a query sees, its own included; None for all.
            The floats of one dtype; all contiguous on the last axis.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_shape("query", query, None, None, None)
    num_heads, head_dim = query.shape[1:]
    check_shape("out", out, *query.shape)
    check_cache(query, key_cache, value_cache)
    check_floats(out=out, query=query)
    check_shape("block_table", block_table, None, None)
    num_rows = len(block_table)
    check_shape("context_lens", context_lens, num_rows)
    check_shape("cu_query_lens", cu_query_lens, num_rows + 1)
    check_shape("tiles", tiles, 2, None)
    check_dtype(torch.int32, table=block_table, lens=context_lens, cu_query_lens=cu_query_lens, tiles=tiles)
    check_last_axis(out=out, query=query, block_table=block_table, tiles=tiles)
    num_kv_heads = key_cache.shape[1]
    group = num_heads // num_kv_heads
    block_m = max(16, triton.next_power_of_2(TILE_QUERIES * group))
    block_k, num_warps, num_stages = BLOCKS[query.dtype]
    _attention_prefill_kernel[(tiles.shape[1], num_kv_heads)](
        out, query, key_cache, value_cache, block_table, context_lens, cu_query_lens, tiles, head_dim**-0.5 * LOG2_E,
        out.stride(0), out.stride(1), query.stride(0), query.stride(1), key_cache.stride(0), key_cache.stride(1),
        block_table.stride(0), tiles.stride(0),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, WINDOW=window or 0, TILE=TILE_QUERIES,
        BLOCK_M=block_m, BLOCK_K=block_k, BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        num_warps=num_warps, num_stages=num_stages, **overlap_options(query),
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["stride_tilesa"],
    do_not_specialize_on_alignment=["block_table_ptr", "context_lens_ptr", "cu_query_lens_ptr", "tiles_ptr"],
)
def _attention_prefill_kernel(
    out_ptr, query_ptr, key_ptr, value_ptr, block_table_ptr, context_lens_ptr, cu_query_lens_ptr, tiles_ptr, scale,
    stride_outt, stride_outh, stride_queryt, stride_queryh, stride_cacheslot, stride_cacheh, stride_tables, stride_tilesa,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    wait_for_inputs(OVERLAPS)
    # --- which tile is mine ---
    #   keys of a row:  | computed before | this step: … | my queries | … |
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(tiles_ptr + tile).to(tl.int64)
    if row < 0:
        return  # no such tile in this step
    first_query = tl.load(tiles_ptr + stride_tilesa + tile)
    first_token = tl.load(cu_query_lens_ptr + row)
    num_queries = tl.load(cu_query_lens_ptr + row + 1) - first_token
    num_before = tl.load(context_lens_ptr + row) - num_queries
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    queries = first_query + offs_m // GROUP
    mask_m = (offs_m < TILE * GROUP) & (queries < num_queries)
    mask_d = offs_d < HEAD_DIM
    mask_md = mask_m[:, None] & mask_d[None, :]
    tokens = (first_token + queries).to(tl.int64)
    heads = kv_head * GROUP + offs_m % GROUP
    positions = num_before + queries
    end = tl.minimum(num_before + first_query + TILE, num_before + num_queries)  # keys that any query of mine sees
    start = 0
    if WINDOW > 0:
        start = tl.maximum(num_before + first_query - WINDOW + 1, 0) // BLOCK_K * BLOCK_K
    # --- load ---
    q = tl.load(
        query_ptr + tokens[:, None] * stride_queryt + heads[:, None] * stride_queryh + offs_d[None, :],
        mask=mask_md, other=0.0,
    )  # fmt: skip
    head_key_ptr = key_ptr + kv_head * stride_cacheh
    head_value_ptr = value_ptr + kv_head * stride_cacheh
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # keys:  | start … some out of the window | all seen by all queries | diagonal … end |
    first_diagonal = tl.maximum((num_before + first_query + 1) // BLOCK_K * BLOCK_K, start)
    first_whole = start
    if WINDOW > 0:
        last_query = num_before + first_query + TILE - 1
        first_whole = tl.cdiv(tl.maximum(last_query - WINDOW + 1, 0), BLOCK_K) * BLOCK_K
        first_whole = tl.minimum(tl.maximum(first_whole, start), first_diagonal)
        for first in range(start, first_whole, BLOCK_K):
            acc, total, highest = _attend_keys(
                acc, total, highest, q, positions, first, end, row, head_key_ptr, head_value_ptr, block_table_ptr, scale,
                stride_cacheslot, stride_tables, HEAD_DIM, BLOCK_SIZE, WINDOW, BLOCK_K, BLOCK_D, IS_WHOLE=False,
            )  # fmt: skip
    for first in range(first_whole, first_diagonal, BLOCK_K):
        acc, total, highest = _attend_keys(
            acc, total, highest, q, positions, first, end, row, head_key_ptr, head_value_ptr, block_table_ptr, scale,
            stride_cacheslot, stride_tables, HEAD_DIM, BLOCK_SIZE, WINDOW, BLOCK_K, BLOCK_D, IS_WHOLE=True,
        )  # fmt: skip
    for first in range(first_diagonal, end, BLOCK_K):
        acc, total, highest = _attend_keys(
            acc, total, highest, q, positions, first, end, row, head_key_ptr, head_value_ptr, block_table_ptr, scale,
            stride_cacheslot, stride_tables, HEAD_DIM, BLOCK_SIZE, WINDOW, BLOCK_K, BLOCK_D, IS_WHOLE=False,
        )  # fmt: skip
    # --- store ---
    out = acc / tl.where(mask_m, total, 1.0)[:, None]
    out_rows_ptr = out_ptr + tokens[:, None] * stride_outt + heads[:, None] * stride_outh
    tl.store(out_rows_ptr + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=mask_md)


@triton.jit
def _attend_keys(
    acc, total, highest, q, positions, first, end, row, head_key_ptr, head_value_ptr, block_table_ptr, scale,
    stride_cacheslot, stride_tables,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """One tile of keys; IS_WHOLE where every query sees all of it, and nothing needs a mask."""
    # --- load ---
    offs_d = tl.arange(0, BLOCK_D)
    offs_k = first + tl.arange(0, BLOCK_K)
    mask_k = offs_k < end
    if IS_WHOLE:
        mask_k = tl.full([BLOCK_K], True, tl.int1)
    mask_d = offs_d < HEAD_DIM
    blocks = tl.load(block_table_ptr + row * stride_tables + offs_k // BLOCK_SIZE, mask=mask_k, other=0)
    slots = blocks.to(tl.int64) * BLOCK_SIZE + offs_k % BLOCK_SIZE
    keys = tl.load(
        head_key_ptr + slots[None, :] * stride_cacheslot + offs_d[:, None],
        mask=mask_d[:, None] & mask_k[None, :], other=0.0,
    )  # fmt: skip
    values = tl.load(
        head_value_ptr + slots[:, None] * stride_cacheslot + offs_d[None, :],
        mask=mask_k[:, None] & mask_d[None, :], other=0.0,
    )  # fmt: skip
    # --- compute (fp32) ---
    scores = tl.dot(q, keys, input_precision="ieee") * scale
    if not IS_WHOLE:
        is_seen = offs_k[None, :] <= positions[:, None]
        if WINDOW > 0:
            is_seen &= offs_k[None, :] > positions[:, None] - WINDOW
        scores = tl.where(is_seen, scores, float("-inf"))
    now_highest = tl.maximum(highest, tl.max(scores, axis=1))
    weights = tl.exp2(scores - now_highest[:, None])
    shrink = tl.exp2(highest - now_highest)
    total = total * shrink + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return acc, total, now_highest


LOG2_E = 1.4426950408889634
"""Scores are taken to base 2, whose power is one instruction."""

LOWEST = tl.constexpr(-1e30)
"""Below any score, yet finite: a query may see no key of its first tiles, and inf - inf is no number."""

BLOCKS = {torch.float16: (64, 4, 2), torch.bfloat16: (64, 4, 2), torch.float32: (32, 4, 2)}
"""dtype: (BLOCK_K, warps, stages). H200, 2026-11-30."""
