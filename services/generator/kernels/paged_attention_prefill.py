"""Causal attention of rows of any length over a paged KV cache: whole prompts, chunks of prompts and single tokens in one launch.

Semantics:  out[t, h] = softmax(q[t, h] · K[past of t]ᵀ / √D) V[past of t], the past being the token itself and the `window - 1`
            before it, or all before it; fp32.
            The tokens' own keys and values stand side by side in the projection's output, where tiles of them are loaded by
            descriptor; those of earlier steps come through the block table.
Source:     FlashAttention-2, arXiv:2307.08691, §3.1; keys found through a block table, arXiv:2309.06180, §4.1; the query heads that
            share a key head are one tile, arXiv:2305.13245.
Tile map:   program (i, g) attends with the queries of tile i and all query heads of key head g: row m of the product is query
            m // GROUP of the tile and head m % GROUP of the group.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from services.generator.kernels.arguments import (
    check_cache,
    check_dtype,
    check_floats,
    check_last_axis,
    check_rows_aligned,
    check_shape,
)
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs
from services.generator.kernels.query_tiles import TILE_QUERIES


def paged_attention_prefill(
    out: Tensor,
    query: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
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
        own_keys: [T, Hkv, D] same dtype, the tokens' own; each token's, and each head's, begin at a multiple of 16 bytes.
        own_values: likewise.
        key_cache: [slots, Hkv, D] of one layer, same dtype; what is in the tokens' own slots is not read.
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
    num_kv_heads = key_cache.shape[1]
    own = {"own_keys": own_keys, "own_values": own_values}
    for name, heads in own.items():
        check_shape(name, heads, len(query), num_kv_heads, head_dim)
    check_floats(out=out, query=query, **own)
    check_shape("block_table", block_table, None, None)
    num_rows = len(block_table)
    check_shape("context_lens", context_lens, num_rows)
    check_shape("cu_query_lens", cu_query_lens, num_rows + 1)
    check_shape("tiles", tiles, 2, None)
    check_dtype(torch.int32, table=block_table, lens=context_lens, cu_query_lens=cu_query_lens, tiles=tiles)
    check_last_axis(out=out, query=query, block_table=block_table, tiles=tiles, **own)
    check_rows_aligned(**own, **{f"a head of {name}": heads[0] for name, heads in own.items()})
    group = num_heads // num_kv_heads
    block_m = max(16, triton.next_power_of_2(TILE_QUERIES * group))
    block_k, num_warps, num_stages = BLOCKS[query.dtype]
    block_d = max(16, triton.next_power_of_2(head_dim))
    descriptors = [
        TensorDescriptor(heads, [*heads.shape], [*heads.stride()], [block_k, 1, block_d]) for heads in own.values()
    ]
    _attention_prefill_kernel[(tiles.shape[1], num_kv_heads)](
        out, query, *descriptors, key_cache, value_cache, block_table, context_lens, cu_query_lens, tiles,
        head_dim**-0.5 * LOG2_E,
        out.stride(0), out.stride(1), query.stride(0), query.stride(1), key_cache.stride(0), key_cache.stride(1),
        block_table.stride(0), tiles.stride(0),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, WINDOW=window or 0, TILE=TILE_QUERIES,
        BLOCK_M=block_m, BLOCK_K=block_k, BLOCK_D=block_d,
        num_warps=num_warps, num_stages=num_stages, **overlap_options(query),
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["stride_tilesa"],
    do_not_specialize_on_alignment=["block_table_ptr", "context_lens_ptr", "cu_query_lens_ptr", "tiles_ptr"],
)
def _attention_prefill_kernel(
    out_ptr, query_ptr, own_keys_desc, own_values_desc, key_ptr, value_ptr,
    block_table_ptr, context_lens_ptr, cu_query_lens_ptr, tiles_ptr, scale,
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
    mask_md = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
    tokens = (first_token + queries).to(tl.int64)
    heads = kv_head * GROUP + offs_m % GROUP
    positions = num_before + queries
    # --- load ---
    q = tl.load(
        query_ptr + tokens[:, None] * stride_queryt + heads[:, None] * stride_queryh + offs_d[None, :],
        mask=mask_md, other=0.0,
    )  # fmt: skip
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # --- keys computed before: tiles that all queries see, then the rest ---
    start = 0
    end_whole = num_before // BLOCK_K * BLOCK_K
    if WINDOW > 0:
        start = tl.maximum(num_before + first_query - WINDOW + 1, 0) // BLOCK_K * BLOCK_K
        end_whole = start
    key_ptr += kv_head * stride_cacheh
    value_ptr += kv_head * stride_cacheh
    block_table_ptr += row * stride_tables
    slots = _slots(block_table_ptr, start, num_before, BLOCK_SIZE, BLOCK_K)
    for first in range(start, end_whole, BLOCK_K):
        next_slots = _slots(block_table_ptr, first + BLOCK_K, num_before, BLOCK_SIZE, BLOCK_K)
        keys, values = _earlier_tile(
            key_ptr, value_ptr, slots, first, num_before, stride_cacheslot, HEAD_DIM, BLOCK_K, BLOCK_D, IS_WHOLE=True
        )
        acc, total, highest = _attend(
            acc, total, highest, q, keys, values, first, num_before, positions, scale, WINDOW, BLOCK_K, IS_WHOLE=True
        )
        slots = next_slots
    for first in range(end_whole, num_before, BLOCK_K):
        next_slots = _slots(block_table_ptr, first + BLOCK_K, num_before, BLOCK_SIZE, BLOCK_K)
        keys, values = _earlier_tile(
            key_ptr, value_ptr, slots, first, num_before, stride_cacheslot, HEAD_DIM, BLOCK_K, BLOCK_D, IS_WHOLE=False
        )
        acc, total, highest = _attend(
            acc, total, highest, q, keys, values, first, num_before, positions, scale, WINDOW, BLOCK_K, IS_WHOLE=False
        )
        slots = next_slots
    # --- keys of this step, counted within the row: likewise ---
    start = 0
    end_whole = (first_query + 1) // BLOCK_K * BLOCK_K
    if WINDOW > 0:
        start = tl.maximum(first_query - WINDOW + 1, 0) // BLOCK_K * BLOCK_K
        end_whole = start
    end = num_before + num_queries
    for first in range(start, end_whole, BLOCK_K):
        keys, values = _own_tile(own_keys_desc, own_values_desc, first_token + first, kv_head, BLOCK_K, BLOCK_D)
        acc, total, highest = _attend(
            acc,
            total,
            highest,
            q,
            keys,
            values,
            num_before + first,
            end,
            positions,
            scale,
            WINDOW,
            BLOCK_K,
            IS_WHOLE=True,
        )
    for first in range(end_whole, tl.minimum(first_query + TILE, num_queries), BLOCK_K):
        keys, values = _own_tile(own_keys_desc, own_values_desc, first_token + first, kv_head, BLOCK_K, BLOCK_D)
        # Behind a row's tokens stand those of others, which may be no numbers where they are padding.
        values = tl.where((first + tl.arange(0, BLOCK_K) < num_queries)[:, None], values, 0.0)
        acc, total, highest = _attend(
            acc,
            total,
            highest,
            q,
            keys,
            values,
            num_before + first,
            end,
            positions,
            scale,
            WINDOW,
            BLOCK_K,
            IS_WHOLE=False,
        )
    # --- store ---
    out = acc / tl.where(mask_m, total, 1.0)[:, None]
    out_rows_ptr = out_ptr + tokens[:, None] * stride_outt + heads[:, None] * stride_outh
    tl.store(out_rows_ptr + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=mask_md)


@triton.jit
def _slots(block_table_ptr, first, end, BLOCK_SIZE: tl.constexpr, BLOCK_K: tl.constexpr):
    """Of the keys of a tile; asked for a turn ahead, so that keys need not wait for their addresses."""
    offs_k = first + tl.arange(0, BLOCK_K)
    blocks = tl.load(block_table_ptr + offs_k // BLOCK_SIZE, mask=offs_k < end, other=0)
    return blocks.to(tl.int64) * BLOCK_SIZE + offs_k % BLOCK_SIZE


@triton.jit
def _earlier_tile(
    key_ptr, value_ptr, slots, first, end, stride_cacheslot,
    HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Keys [BLOCK_D, BLOCK_K] and values [BLOCK_K, BLOCK_D] from the cache."""
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    mask_k = tl.full([BLOCK_K], True, tl.int1) if IS_WHOLE else first + tl.arange(0, BLOCK_K) < end
    keys = tl.load(
        key_ptr + slots[None, :] * stride_cacheslot + offs_d[:, None],
        mask=mask_d[:, None] & mask_k[None, :], other=0.0,
    )  # fmt: skip
    values = tl.load(
        value_ptr + slots[:, None] * stride_cacheslot + offs_d[None, :],
        mask=mask_k[:, None] & mask_d[None, :], other=0.0,
    )  # fmt: skip
    return keys, values


@triton.jit
def _own_tile(own_keys_desc, own_values_desc, token, kv_head, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr):
    """Likewise of this step's tokens from `token` on, zeros behind the last of all."""
    keys = tl.reshape(own_keys_desc.load([token, kv_head, 0]), [BLOCK_K, BLOCK_D])
    values = tl.reshape(own_values_desc.load([token, kv_head, 0]), [BLOCK_K, BLOCK_D])
    return tl.trans(keys), values


@triton.jit
def _attend(
    acc, total, highest, q, keys, values, first, end, positions, scale,
    WINDOW: tl.constexpr, BLOCK_K: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """With the keys at positions from `first` on, to below `end`; IS_WHOLE where every query sees all of them."""
    scores = tl.dot(q, keys, input_precision="ieee") * scale
    if not IS_WHOLE:
        offs_k = (first + tl.arange(0, BLOCK_K))[None, :]
        is_seen = (offs_k < end) & (offs_k <= positions[:, None])
        if WINDOW > 0:
            is_seen &= offs_k > positions[:, None] - WINDOW
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

BLOCKS = {torch.float16: (64, 4, 3), torch.bfloat16: (64, 4, 3), torch.float32: (32, 4, 2)}
"""dtype: (BLOCK_K, warps, stages). H200, 2026-12-01."""
