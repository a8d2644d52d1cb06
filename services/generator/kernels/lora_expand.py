"""LoRA expand: add every row's adapter to the base projection, for all slices of a fused projection in one launch.

Semantics:  y[t, n] += scale[slot_t, s] · Σ_r B[slot_t, n, r] · (Σ_p h[p, t, s, r]), s the slice that column n is in; fp32, rounded
            once. Rows at NO_ADAPTER are neither read nor written; slices that the adapter leaves alone (rank 0) neither.
Source:     Punica, arXiv:2310.18547, §4 (BGMV, SGMV). We differ: see `lora_shrink`, whose parts are summed here.
Tile map:   rows:  program (t, j) adds to columns of tile j of row t.
            tiles: program (c, j) adds to columns of tile j of the rows of chunk c.
            Tiles are counted slice by slice, so that none lies in two slices.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import (
    KernelArgumentError,
    check_floats,
    check_fp32_or_like,
    check_last_axis,
    check_segments,
    check_shape,
)
from services.generator.kernels.lora_delta import check_delta, h_strides, row_delta, tile_delta, tile_sizes, vector
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def lora_expand(
    y: Tensor,
    h: Tensor,
    b: Tensor,
    ranks: Tensor,
    scales: Tensor,
    row_slots: Tensor,
    token_order: Tensor,
    chunk_slots: Tensor,
    chunk_starts: Tensor,
    chunk_lens: Tensor,
    *,
    chunk_size: int,
    slice_sizes: tuple[int, ...],
) -> None:
    """Add each row's adapter to `y`.

    Args:
        y: [T, out] fp16, bf16 or fp32, contiguous on its last axis: the base projection's output, or a part of it. Mutated.
        h: [parts, T, H, slices, R], b: [slots, out, R] in the dtype of `y`, which may also be fp32; ranks,
            scales: see `check_delta`.
        row_slots, token_order, chunk_slots, chunk_starts, chunk_lens, chunk_size: see `lora_shrink`. Slots are below H, or H is 1.
        slice_sizes: columns of each slice, in order; their sum is `out`.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    _check(y, h, b, ranks, scales, slice_sizes)
    check_segments(len(y), row_slots, token_order, chunk_slots, chunk_starts, chunk_lens)
    parts, num_rows, _, num_slices, max_rank = h.shape
    strides = (y.stride(0), *h_strides(h), b.stride(0), b.stride(1))
    if chunk_size == 1:
        block_n, num_warps = next(blocks for limit, blocks in ROW_BLOCKS if num_rows <= limit)
        _lora_expand_rows_kernel[(num_rows, _num_tiles(slice_sizes, block_n))](
            y, h, b, ranks, scales, row_slots, max_rank, *strides,
            SLICE_SIZES=slice_sizes, NUM_PARTS=parts, NUM_SLICES=num_slices,
            BLOCK_N=block_n, VECTOR=vector(max_rank), num_warps=num_warps, **overlap_options(y),
        )  # fmt: skip
        return
    most_columns, num_warps = TILE_BLOCKS[chunk_size]
    block_r, block_n = tile_sizes(max_rank, most_columns)
    _lora_expand_tiles_kernel[(len(chunk_slots), _num_tiles(slice_sizes, block_n))](
        y, h, b, ranks, scales, token_order, chunk_slots, chunk_starts, chunk_lens, max_rank, *strides,
        SLICE_SIZES=slice_sizes, NUM_PARTS=parts, NUM_SLICES=num_slices, BLOCK_M=chunk_size, BLOCK_N=block_n,
        BLOCK_R=block_r, VECTOR=vector(max_rank), PRECISION="ieee" if b.dtype == torch.float32 else "tf32",
        num_warps=num_warps, **overlap_options(y),
    )  # fmt: skip


def _check(y: Tensor, h: Tensor, b: Tensor, ranks: Tensor, scales: Tensor, slice_sizes: tuple[int, ...]) -> None:
    check_floats(b=b)
    check_fp32_or_like(b, y=y)
    check_last_axis(y=y)
    check_shape("y", y, None, b.shape[1])
    check_delta(len(y), h, b, ranks, scales)
    check_shape("ranks", ranks, None, len(slice_sizes))
    if sum(slice_sizes) != b.shape[1]:
        raise KernelArgumentError(f"slice_sizes {slice_sizes} do not add up to {b.shape[1]}")


def _num_tiles(slice_sizes: tuple[int, ...], block_n: int) -> int:
    return sum(triton.cdiv(size, block_n) for size in slice_sizes)


@triton.jit
def _columns(tile, SLICE_SIZES: tl.constexpr, NUM_SLICES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Of a tile: its slice, its first column, the end of its slice's columns."""
    slice_id = 0
    first_n = 0
    end_n = 0
    first_tile = 0
    start = 0
    for s in tl.static_range(NUM_SLICES):
        size = SLICE_SIZES[s]
        if tile >= first_tile:
            slice_id = s
            first_n = start + (tile - first_tile) * BLOCK_N
            end_n = start + size
        first_tile += (size + BLOCK_N - 1) // BLOCK_N
        start += size
    return slice_id, first_n, end_n


@triton.jit(do_not_specialize_on_alignment=["row_slots_ptr"])
def _lora_expand_rows_kernel(
    y_ptr, h_ptr, b_ptr, ranks_ptr, scales_ptr, row_slots_ptr, max_rank,
    stride_yt, stride_hp, stride_ht, stride_hslot, stride_bslot, stride_bn,
    SLICE_SIZES: tl.constexpr, NUM_PARTS: tl.constexpr, NUM_SLICES: tl.constexpr,
    BLOCK_N: tl.constexpr, VECTOR: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots_ptr + row).to(tl.int64)
    if slot < 0:
        wait_for_inputs(OVERLAPS)  # else this kernel might end before those that it follows
        return  # a base row, or padding of a graph
    slice_id, first_n, end_n = _columns(tl.program_id(1), SLICE_SIZES, NUM_SLICES, BLOCK_N)
    rank = tl.load(ranks_ptr + slot * NUM_SLICES + slice_id)
    if rank == 0:
        wait_for_inputs(OVERLAPS)  # else this kernel might end before those that it follows
        return  # the adapter leaves this slice alone
    scale = tl.load(scales_ptr + slot * NUM_SLICES + slice_id)
    offs_n = first_n + tl.arange(0, BLOCK_N)
    mask_n = offs_n < end_n
    # --- compute (fp32) ---
    delta = row_delta(
        h_ptr + row * stride_ht + slot * stride_hslot + slice_id * max_rank, b_ptr + slot * stride_bslot,
        offs_n, mask_n, rank, scale, stride_hp, stride_bn, NUM_PARTS, BLOCK_N, VECTOR, OVERLAPS,
    )  # fmt: skip
    # --- store ---
    y = tl.load(y_ptr + row * stride_yt + offs_n, mask=mask_n, other=0.0)
    tl.store(y_ptr + row * stride_yt + offs_n, (y.to(tl.float32) + delta).to(y_ptr.dtype.element_ty), mask=mask_n)


@triton.jit(do_not_specialize_on_alignment=["order_ptr", "chunk_slots_ptr", "chunk_starts_ptr", "chunk_lens_ptr"])
def _lora_expand_tiles_kernel(
    y_ptr, h_ptr, b_ptr, ranks_ptr, scales_ptr, order_ptr, chunk_slots_ptr, chunk_starts_ptr, chunk_lens_ptr, max_rank,
    stride_yt, stride_hp, stride_ht, stride_hslot, stride_bslot, stride_bn,
    SLICE_SIZES: tl.constexpr, NUM_PARTS: tl.constexpr, NUM_SLICES: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    chunk = tl.program_id(0)
    slot = tl.load(chunk_slots_ptr + chunk).to(tl.int64)
    if slot < 0:
        wait_for_inputs(OVERLAPS)  # else this kernel might end before those that it follows
        return  # base rows, or no such chunk in this step
    slice_id, first_n, end_n = _columns(tl.program_id(1), SLICE_SIZES, NUM_SLICES, BLOCK_N)
    rank = tl.load(ranks_ptr + slot * NUM_SLICES + slice_id)
    if rank == 0:
        wait_for_inputs(OVERLAPS)  # else this kernel might end before those that it follows
        return  # the adapter leaves this slice alone
    scale = tl.load(scales_ptr + slot * NUM_SLICES + slice_id)
    offs_m = tl.arange(0, BLOCK_M)
    mask_m = offs_m < tl.load(chunk_lens_ptr + chunk)
    rows = tl.load(order_ptr + tl.load(chunk_starts_ptr + chunk) + offs_m, mask=mask_m, other=0).to(tl.int64)
    offs_n = first_n + tl.arange(0, BLOCK_N)
    mask_n = offs_n < end_n
    # --- compute (fp32) ---
    delta = tile_delta(
        h_ptr + slot * stride_hslot + slice_id * max_rank, b_ptr + slot * stride_bslot, rows, mask_m, offs_n, mask_n,
        rank, scale, stride_hp, stride_ht, stride_bn,
        NUM_PARTS, BLOCK_M, BLOCK_N, BLOCK_R, VECTOR, PRECISION, OVERLAPS,
    )  # fmt: skip
    # --- store ---
    y_tile_ptr = y_ptr + rows[:, None] * stride_yt + offs_n[None, :]
    mask_mn = mask_m[:, None] & mask_n[None, :]
    y = tl.load(y_tile_ptr, mask=mask_mn, other=0.0)
    tl.store(y_tile_ptr, (y.to(tl.float32) + delta).to(y_ptr.dtype.element_ty), mask=mask_mn)


ROW_BLOCKS = ((16, (128, 4)), (1 << 30, (512, 4)))
"""(up to so many rows, (BLOCK_N, warps)). H200, 2026-11-30."""

TILE_BLOCKS = {16: (256, 4), 32: (128, 4), 64: (128, 4), 128: (128, 8)}
"""chunk size: (the most that BLOCK_N may be, warps). H200, 2026-11-30."""
