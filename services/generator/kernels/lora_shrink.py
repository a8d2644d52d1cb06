"""LoRA shrink: every row's rank-r intermediate, for all slices of a fused projection in one launch.

Semantics:  sum over p of h[p, t, s, r] = Σ_k A[slot_t, s, r, k] x[t, k], for r below the adapter's rank; fp32. What multiplies it,
            the adapter's scale, comes with `lora_expand`. Rows at NO_ADAPTER, and ranks beyond the adapter's, are neither read
            nor written.
Source:     Punica, arXiv:2310.18547, §4 (BGMV, SGMV). We differ: the k axis is split over programs and the parts of the sum lie
            side by side in `h`, summed by `lora_expand` in a fixed order (no atomics, same bits every time); the loop over ranks
            ends at the adapter's own; segments are cut into chunks of one size.
Tile map:   rows:  program (t, p, s) computes h[p, t, s, :] from part p of x[t].
            tiles: program (c, p, s) computes h[p, t, s, :] for the rows t of chunk c.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import (
    check_contiguous,
    check_dtype,
    check_floats,
    check_last_axis,
    check_segments,
    check_shape,
)
from services.generator.kernels.lora_delta import RANK_BLOCK
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def num_shrink_parts(num_rows: int, in_features: int, chunk_size: int) -> int:
    """Into how many parts `x` is split: few programs would leave most of the GPU idle, many parts take `lora_expand` long to sum.

    A function of sizes only, so that a graph replays whatever the mix of adapters.
    """
    parts = next(parts for limit, parts in PARTS[chunk_size > 1] if num_rows <= limit)
    return max(1, min(parts, in_features // MIN_PART))


def lora_shrink(
    h: Tensor,
    x: Tensor,
    a: Tensor,
    ranks: Tensor,
    row_slots: Tensor,
    token_order: Tensor,
    chunk_slots: Tensor,
    chunk_starts: Tensor,
    chunk_lens: Tensor,
    *,
    chunk_size: int,
) -> None:
    """Write the parts of each row's intermediate.

    Args:
        h: [parts, T, slices, R] fp32, contiguous; parts as `num_shrink_parts` says. Mutated.
        x: [T, in] fp16, bf16 or fp32, contiguous on its last axis.
        a: [slots, slices, R, in] same dtype, contiguous on its last axis.
        ranks: [slots, slices] int32, contiguous.
        row_slots, token_order, chunk_slots, chunk_starts, chunk_lens: see `LoraSegments`.
        chunk_size: 1 for a program per row, which reads `row_slots` only; 16, 32, 64 or 128 for a program per chunk. The one that
            the chunks were cut to.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    _check(h, x, a, ranks)
    check_segments(len(x), row_slots, token_order, chunk_slots, chunk_starts, chunk_lens)
    parts, num_rows, num_slices, max_rank = h.shape
    strides = (x.stride(0), a.stride(0), a.stride(1), a.stride(2))
    if chunk_size == 1:
        block_k, num_warps = next(blocks for limit, blocks in ROW_BLOCKS[x.dtype] if num_rows <= limit)
        _lora_shrink_rows_kernel[(num_rows, parts, num_slices)](
            h, x, a, ranks, row_slots, num_rows, x.shape[1], max_rank, *strides,
            NUM_PARTS=parts, NUM_SLICES=num_slices, BLOCK_R=RANK_BLOCK, BLOCK_K=block_k, num_warps=num_warps, **overlap_options(x),
        )  # fmt: skip
        return
    block_k, num_warps, num_stages = TILE_BLOCKS[x.dtype]
    _lora_shrink_tiles_kernel[(len(chunk_slots), parts, num_slices)](
        h, x, a, ranks, token_order, chunk_slots, chunk_starts, chunk_lens, num_rows, x.shape[1], max_rank, parts, num_slices,
        *strides, BLOCK_M=chunk_size, BLOCK_R=RANK_BLOCK, BLOCK_K=block_k,
        num_warps=num_warps, num_stages=num_stages, **overlap_options(x),
    )  # fmt: skip


def _check(h: Tensor, x: Tensor, a: Tensor, ranks: Tensor) -> None:
    check_floats(x=x, a=a)
    check_dtype(torch.float32, h=h)
    check_dtype(torch.int32, ranks=ranks)
    check_shape("a", a, None, None, None, x.shape[-1])
    num_slots, num_slices, max_rank = a.shape[:3]
    check_shape("h", h, None, len(x), num_slices, max_rank)
    check_shape("ranks", ranks, num_slots, num_slices)
    check_last_axis(x=x, a=a)
    check_contiguous(h=h, ranks=ranks)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["row_slots_ptr"])
def _lora_shrink_rows_kernel(
    h_ptr, x_ptr, a_ptr, ranks_ptr, row_slots_ptr, num_rows, in_features, max_rank,
    stride_xt, stride_aslot, stride_as, stride_ar,
    NUM_PARTS: tl.constexpr, NUM_SLICES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slice_id = tl.program_id(2)
    slot = tl.load(row_slots_ptr + row).to(tl.int64)
    if slot < 0:
        wait_for_inputs(OVERLAPS)  # else this kernel might end before those that it follows
        return  # a base row, or padding of a graph: `lora_expand` does not read it either
    rank = tl.load(ranks_ptr + slot * NUM_SLICES + slice_id)
    part_size = tl.cdiv(tl.cdiv(in_features, BLOCK_K), NUM_PARTS) * BLOCK_K
    first_k = part * part_size
    last_k = tl.minimum(first_k + part_size, in_features)
    h_ptr += ((part * num_rows + row) * NUM_SLICES + slice_id) * max_rank
    for first_r in range(0, rank, BLOCK_R):
        offs_r = first_r + tl.arange(0, BLOCK_R)
        mask_r = offs_r < rank
        rows_ptr = a_ptr + slot * stride_aslot + slice_id * stride_as + offs_r[:, None] * stride_ar
        acc = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
        for k in range(first_k, last_k, BLOCK_K):
            # --- load ---
            offs_k = k + tl.arange(0, BLOCK_K)
            mask_k = offs_k < last_k
            a = tl.load(rows_ptr + offs_k[None, :], mask=mask_r[:, None] & mask_k[None, :], other=0.0)
            wait_for_inputs(OVERLAPS)  # after the weights, which are most of what is read
            x = tl.load(x_ptr + row * stride_xt + offs_k, mask=mask_k, other=0.0).to(tl.float32)
            # --- compute (fp32) ---
            acc += a.to(tl.float32) * x[None, :]
        wait_for_inputs(OVERLAPS)  # where there was nothing of this part to loop over
        # --- store ---
        tl.store(h_ptr + offs_r, tl.sum(acc, axis=1), mask=mask_r)
    wait_for_inputs(OVERLAPS)  # where there was no rank to loop over


@triton.jit(
    do_not_specialize=["num_rows", "num_parts", "num_slices"],  # or each is compiled for itself
    do_not_specialize_on_alignment=["order_ptr", "chunk_slots_ptr", "chunk_starts_ptr", "chunk_lens_ptr"],
)
def _lora_shrink_tiles_kernel(
    h_ptr, x_ptr, a_ptr, ranks_ptr, order_ptr, chunk_slots_ptr, chunk_starts_ptr, chunk_lens_ptr,
    num_rows, in_features, max_rank, num_parts, num_slices,
    stride_xt, stride_aslot, stride_as, stride_ar,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    wait_for_inputs(OVERLAPS)
    # --- which tile is mine ---
    chunk = tl.program_id(0)
    part = tl.program_id(1)
    slice_id = tl.program_id(2)
    slot = tl.load(chunk_slots_ptr + chunk).to(tl.int64)
    if slot < 0:
        return  # base rows, or no such chunk in this step
    num_mine = tl.load(chunk_lens_ptr + chunk)
    rank = tl.load(ranks_ptr + slot * num_slices + slice_id)
    offs_m = tl.arange(0, BLOCK_M)
    mask_m = offs_m < num_mine
    rows = tl.load(order_ptr + tl.load(chunk_starts_ptr + chunk) + offs_m, mask=mask_m, other=0).to(tl.int64)
    part_size = tl.cdiv(tl.cdiv(in_features, BLOCK_K), num_parts) * BLOCK_K
    first_k = part * part_size
    last_k = tl.minimum(first_k + part_size, in_features)
    for first_r in range(0, rank, BLOCK_R):
        offs_r = first_r + tl.arange(0, BLOCK_R)
        mask_r = offs_r < rank
        rows_ptr = a_ptr + slot * stride_aslot + slice_id * stride_as + offs_r[None, :] * stride_ar
        acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        for k in range(first_k, last_k, BLOCK_K):
            # --- load ---
            offs_k = k + tl.arange(0, BLOCK_K)
            mask_k = offs_k < last_k
            x = tl.load(
                x_ptr + rows[:, None] * stride_xt + offs_k[None, :], mask=mask_m[:, None] & mask_k[None, :], other=0.0
            )
            a = tl.load(rows_ptr + offs_k[:, None], mask=mask_k[:, None] & mask_r[None, :], other=0.0)
            # --- compute (fp32) ---
            acc = tl.dot(x, a, acc, input_precision="ieee")
        # --- store ---
        h_rows_ptr = h_ptr + ((part * num_rows + rows[:, None]) * num_slices + slice_id) * max_rank
        tl.store(h_rows_ptr + offs_r[None, :], acc, mask=mask_m[:, None] & mask_r[None, :])


MIN_PART = 128
"""The fewest elements of `x` in a part."""

PARTS = {
    False: ((4, 32), (16, 16), (512, 4), (1 << 30, 1)),
    True: ((16, 16), (128, 8), (512, 4), (2048, 2), (1 << 30, 1)),
}
"""whether by chunks: (up to so many rows, parts). H200, 2026-11-30."""

ROW_BLOCKS = {
    torch.float16: ((16, (512, 8)), (1 << 30, (1024, 4))),
    torch.bfloat16: ((16, (512, 8)), (1 << 30, (1024, 4))),
    torch.float32: ((1 << 30, (256, 8)),),
}
"""dtype: (up to so many rows, (BLOCK_K, warps)). H200, 2026-11-30."""

TILE_BLOCKS = {torch.float16: (128, 4, 4), torch.bfloat16: (128, 4, 4), torch.float32: (64, 4, 3)}
"""dtype: (BLOCK_K, warps, stages). H200, 2026-11-30."""
