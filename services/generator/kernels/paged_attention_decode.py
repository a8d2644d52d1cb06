"""Attention of one query per row over a paged KV cache, the keys split over programs.

Semantics:  out[s, h] = softmax(q[s, h] · K[s]ᵀ / √D) V[s] over the row's last `window` keys, or over all of them; fp32.
Source:     Flash-Decoding (T. Dao et al., 2023): parts of the softmax merged by their log-sum-exp; online softmax,
            arXiv:2205.14135, §3.1; the query heads that share a key head are one tile, arXiv:2305.13245. We differ: the number of
            splits depends on sizes only, and a split has at least MIN_SPLIT keys, so that short rows use few of many.
Tile map:   program (s, g, i) attends with all query heads of key head g of row s over the keys of split i;
            program (s, h) of the second launch merges the splits of query head h. With one split there is no second launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import (
    check_cache,
    check_contiguous,
    check_dtype,
    check_floats,
    check_last_axis,
    check_shape,
)
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def num_splits(num_rows: int, num_kv_heads: int) -> int:
    """Splits of each row's keys: enough programs to fill the GPU. A function of sizes only, so that a graph can replay, and a power
    of two, so that few kernels have to be compiled."""
    wanted = max(1, min(MAX_SPLITS, TARGET_PROGRAMS // (num_rows * num_kv_heads)))
    return 1 << (wanted.bit_length() - 1)


def paged_attention_decode(
    out: Tensor,
    parts: Tensor,
    part_lse: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    block_size: int,
    window: int | None = None,
) -> None:
    """Attend with one query per row.

    Args:
        out: [S, Hq, D] fp16, bf16 or fp32. Mutated.
        parts: [S, Hq, splits, D] fp32, contiguous, scratch; `num_splits` says how many. Not touched with one split. Mutated.
        part_lse: [S, Hq, splits] fp32, contiguous, likewise. Mutated.
        query: [S, Hq, D] same dtype.
        key_cache: [slots, Hkv, D] of one layer, same dtype; the rows' own keys are written already.
        value_cache: likewise, same strides.
        block_table: [S, blocks] int32, contiguous on its last axis: blocks of each row in order of positions.
        context_lens: [S] int32, keys of each row, its own included; a row of 0 (padding of a graph) is left untouched.
        block_size: positions of a block.
        window: how many keys a query sees, its own included; None for all.
            All but the scratch of one dtype and contiguous on the last axis.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_shape("query", query, None, None, None)
    num_rows, num_heads, head_dim = query.shape
    check_shape("out", out, *query.shape)
    check_cache(query, key_cache, value_cache)
    check_shape("block_table", block_table, num_rows, None)
    check_shape("context_lens", context_lens, num_rows)
    check_dtype(torch.int32, block_table=block_table, context_lens=context_lens)
    check_floats(out=out, query=query)
    check_last_axis(out=out, query=query, block_table=block_table)
    num_kv_heads = key_cache.shape[1]
    check_shape("parts", parts, num_rows, num_heads, None, head_dim)
    splits = parts.shape[2]
    check_shape("part_lse", part_lse, num_rows, num_heads, splits)
    check_dtype(torch.float32, parts=parts, part_lse=part_lse)
    check_contiguous(parts=parts, part_lse=part_lse)
    group = num_heads // num_kv_heads
    block_d = max(16, triton.next_power_of_2(head_dim))
    block_k, num_warps, num_stages = next(blocks for limit, blocks in BLOCKS[query.dtype] if num_rows <= limit)
    _attention_decode_kernel[(num_rows, num_kv_heads, splits)](
        out, parts, part_lse, query, key_cache, value_cache, block_table, context_lens, head_dim**-0.5,
        out.stride(0), out.stride(1), query.stride(0), query.stride(1), key_cache.stride(0), key_cache.stride(1),
        block_table.stride(0),
        NUM_SPLITS=splits, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, WINDOW=window or 0, MIN_SPLIT=MIN_SPLIT,
        BLOCK_G=max(16, triton.next_power_of_2(group)), BLOCK_K=block_k, BLOCK_D=block_d,
        num_warps=num_warps, num_stages=num_stages, **overlap_options(query),
    )  # fmt: skip
    if splits > 1:
        _attention_merge_kernel[(num_rows, num_heads)](
            out, parts, part_lse, context_lens, out.stride(0), out.stride(1),
            NUM_SPLITS=splits, HEAD_DIM=head_dim, BLOCK_S=triton.next_power_of_2(splits), BLOCK_D=block_d, num_warps=1,
            **overlap_options(query),
        )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["block_table_ptr", "context_lens_ptr"])
def _attention_decode_kernel(
    out_ptr, parts_ptr, part_lse_ptr, query_ptr, key_ptr, value_ptr, block_table_ptr, context_lens_ptr, scale,
    stride_outs, stride_outh, stride_querys, stride_queryh, stride_cacheslot, stride_cacheh, stride_tables,
    NUM_SPLITS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, MIN_SPLIT: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    #   keys of a row:  | out of the window | split 0 | split 1 | … | last, shorter |
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_keys = tl.load(context_lens_ptr + row)
    if num_keys == 0:
        return  # padding of a graph
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(num_keys - WINDOW, 0)
    split_size = tl.cdiv(num_keys - first_key, NUM_SPLITS)
    split_size = tl.cdiv(tl.maximum(split_size, MIN_SPLIT), BLOCK_K) * BLOCK_K
    start = first_key + split * split_size
    end = tl.minimum(start + split_size, num_keys)
    offs_g = tl.arange(0, BLOCK_G)
    offs_d = tl.arange(0, BLOCK_D)
    mask_g = offs_g < GROUP
    mask_d = offs_d < HEAD_DIM
    mask_gd = mask_g[:, None] & mask_d[None, :]
    heads = kv_head * GROUP + offs_g
    lse_ptr = part_lse_ptr + (row * tl.num_programs(1) * GROUP + heads) * NUM_SPLITS + split
    wait_for_inputs(OVERLAPS)
    if start >= end:
        tl.store(lse_ptr, tl.full([BLOCK_G], float("-inf"), tl.float32), mask=mask_g)
        return  # the row is too short for this split: it weighs nothing
    # --- load ---
    q = tl.load(
        query_ptr + row * stride_querys + heads[:, None] * stride_queryh + offs_d[None, :], mask=mask_gd, other=0.0
    )
    head_key_ptr = key_ptr + kv_head * stride_cacheh
    head_value_ptr = value_ptr + kv_head * stride_cacheh
    highest = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for first in range(start, end, BLOCK_K):
        offs_k = first + tl.arange(0, BLOCK_K)
        mask_k = offs_k < end
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
        scores = tl.where(mask_k[None, :], scores, float("-inf"))
        now_highest = tl.maximum(highest, tl.max(scores, axis=1))  # finite: every tile has a key
        weights = tl.exp(scores - now_highest[:, None])
        shrink = tl.exp(highest - now_highest)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
        highest = now_highest
    # --- store ---
    acc = acc / total[:, None]
    if NUM_SPLITS == 1:
        rows_ptr = out_ptr + row * stride_outs + heads[:, None] * stride_outh
        tl.store(rows_ptr + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_gd)
    else:
        heads_ptr = parts_ptr + ((row * tl.num_programs(1) * GROUP + heads[:, None]) * NUM_SPLITS + split) * HEAD_DIM
        tl.store(heads_ptr + offs_d[None, :], acc, mask=mask_gd)
        tl.store(lse_ptr, highest + tl.log(total), mask=mask_g)


@triton.jit(do_not_specialize_on_alignment=["context_lens_ptr"])
def _attention_merge_kernel(
    out_ptr, parts_ptr, part_lse_ptr, context_lens_ptr, stride_outs, stride_outh,
    NUM_SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    wait_for_inputs(OVERLAPS)
    # --- which tile is mine ---
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if tl.load(context_lens_ptr + row) == 0:
        return  # padding of a graph
    first_part = (row * tl.num_programs(1) + head) * NUM_SPLITS
    offs_s = tl.arange(0, BLOCK_S)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    # --- load ---
    lse = tl.load(part_lse_ptr + first_part + offs_s, mask=offs_s < NUM_SPLITS, other=float("-inf"))
    is_used = lse > float("-inf")  # what an unused split left in `parts` is not read
    parts = tl.load(
        parts_ptr + (first_part + offs_s[:, None]) * HEAD_DIM + offs_d[None, :],
        mask=is_used[:, None] & mask_d[None, :], other=0.0,
    )  # fmt: skip
    # --- compute (fp32) ---
    weights = tl.exp(lse - tl.max(lse, axis=0))
    out = tl.sum(parts * weights[:, None], axis=0) / tl.sum(weights, axis=0)
    # --- store ---
    tl.store(out_ptr + row * stride_outs + head * stride_outh + offs_d, out.to(out_ptr.dtype.element_ty), mask=mask_d)


TARGET_PROGRAMS = 528
"""Four for each multiprocessor of an H200."""

MAX_SPLITS = 32

MIN_SPLIT = 128
"""Keys below which splitting a row costs more than it saves. H200, 2026-11-30."""

HALF_BLOCKS = ((8, (64, 8, 2)), (32, (64, 4, 2)), (96, (64, 8, 2)), (1 << 30, (32, 2, 2)))
BLOCKS = {
    torch.float16: HALF_BLOCKS,
    torch.bfloat16: HALF_BLOCKS,
    torch.float32: ((1 << 30, (32, 4, 2)),),
}
"""dtype: (up to so many rows, (BLOCK_K, warps, stages)). H200, 2026-11-30."""
