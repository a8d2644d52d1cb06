"""LoRA expand: add every row's adapter to the base projection, for all slices of a fused projection in one launch.

Semantics:  y[t, n] += Σ_r B[slot_t, n, r] · (Σ_p h[p, t, s, r]), s the slice that column n is in; fp32, rounded once.
            Rows at NO_ADAPTER are neither read nor written; slices that the adapter leaves alone (rank 0) neither.
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
    check_contiguous,
    check_dtype,
    check_floats,
    check_last_axis,
    check_segments,
    check_shape,
)
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def lora_expand(
    y: Tensor,
    h: Tensor,
    b: Tensor,
    ranks: Tensor,
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
        y: [T, out] fp16, bf16 or fp32, contiguous on its last axis: the base projection's output. Mutated.
        h: [parts, T, slices, R] fp32, contiguous: what `lora_shrink` wrote.
        b: [slots, out, R] same dtype as `y`, contiguous on its last axis.
        ranks: [slots, slices] int32, contiguous.
        row_slots, token_order, chunk_slots, chunk_starts, chunk_lens, chunk_size: see `lora_shrink`.
        slice_sizes: columns of each slice, in order; their sum is `out`.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    _check(y, h, b, ranks, slice_sizes)
    check_segments(len(y), row_slots, token_order, chunk_slots, chunk_starts, chunk_lens)
    parts, num_rows, num_slices, max_rank = h.shape
    strides = (y.stride(0), b.stride(0), b.stride(1))
    if chunk_size == 1:
        block_n, num_warps = next(blocks for limit, blocks in ROW_BLOCKS if num_rows <= limit)
        _expand_rows_kernel[(num_rows, _num_tiles(slice_sizes, block_n))](
            y, h, b, ranks, row_slots, num_rows, max_rank, *strides,
            SLICE_SIZES=slice_sizes, NUM_PARTS=parts, NUM_SLICES=num_slices, BLOCK_P=triton.next_power_of_2(parts),
            BLOCK_N=block_n, BLOCK_R=RANK_BLOCK, VECTOR=_vector(max_rank), num_warps=num_warps, **overlap_options(y),
        )  # fmt: skip
        return
    block_n, num_warps = TILE_BLOCKS[chunk_size]
    _expand_tiles_kernel[(len(chunk_slots), _num_tiles(slice_sizes, block_n))](
        y, h, b, ranks, token_order, chunk_slots, chunk_starts, chunk_lens, num_rows, max_rank, *strides,
        SLICE_SIZES=slice_sizes, NUM_PARTS=parts, NUM_SLICES=num_slices, BLOCK_M=chunk_size, BLOCK_N=block_n,
        BLOCK_R=RANK_BLOCK, VECTOR=_vector(max_rank), PRECISION="ieee" if y.dtype == torch.float32 else "tf32",
        num_warps=num_warps, **overlap_options(y),
    )  # fmt: skip


def _check(y: Tensor, h: Tensor, b: Tensor, ranks: Tensor, slice_sizes: tuple[int, ...]) -> None:
    check_floats(y=y, b=b)
    check_dtype(torch.float32, h=h)
    check_dtype(torch.int32, ranks=ranks)
    num_slots, out_features, max_rank = b.shape
    check_shape("y", y, None, out_features)
    check_shape("h", h, None, len(y), len(slice_sizes), max_rank)
    check_shape("ranks", ranks, num_slots, len(slice_sizes))
    check_last_axis(y=y, b=b)
    check_contiguous(h=h, ranks=ranks)
    if sum(slice_sizes) != out_features:
        raise KernelArgumentError(f"slice_sizes {slice_sizes} do not add up to {out_features}")


def _vector(max_rank: int) -> int:
    """Ranks that may be loaded together although the adapter has fewer: they lie within the same row of the bank."""
    return 8 if max_rank % 8 == 0 else 1


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


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["row_slots_ptr"])
def _expand_rows_kernel(
    y_ptr, h_ptr, b_ptr, ranks_ptr, row_slots_ptr, num_rows, max_rank,
    stride_yt, stride_bslot, stride_bn,
    SLICE_SIZES: tl.constexpr, NUM_PARTS: tl.constexpr, NUM_SLICES: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots_ptr + row).to(tl.int64)
    if slot < 0:
        return  # a base row, or padding of a graph
    slice_id, first_n, end_n = _columns(tl.program_id(1), SLICE_SIZES, NUM_SLICES, BLOCK_N)
    rank = tl.load(ranks_ptr + slot * NUM_SLICES + slice_id)
    if rank == 0:
        return  # the adapter leaves this slice alone
    offs_n = first_n + tl.arange(0, BLOCK_N)
    mask_n = offs_n < end_n
    offs_p = tl.arange(0, BLOCK_P)
    parts_ptr = h_ptr + ((offs_p * num_rows + row) * NUM_SLICES + slice_id) * max_rank
    columns_ptr = b_ptr + slot * stride_bslot + offs_n.to(tl.int64) * stride_bn
    # --- load ---
    acc = tl.zeros([BLOCK_N], tl.float32)
    for first_r in range(0, rank, BLOCK_R):
        offs_r = first_r + tl.arange(0, BLOCK_R)
        mask_r = offs_r < rank
        whole_r = offs_r // VECTOR * VECTOR < rank  # whole vectors, so that a load is one instruction
        b = tl.load(columns_ptr[:, None] + offs_r[None, :], mask=mask_n[:, None] & whole_r[None, :], other=0.0)
        b = tl.where(mask_r[None, :], b, 0.0)
        wait_for_inputs(OVERLAPS)  # after the weights, which are most of what is read
        mask_p = (offs_p < NUM_PARTS)[:, None] & mask_r[None, :]
        h = tl.sum(tl.load(parts_ptr[:, None] + offs_r[None, :], mask=mask_p, other=0.0), axis=0)
        # --- compute (fp32) ---
        acc += tl.sum(b.to(tl.float32) * h[None, :], axis=1)
    # --- store ---
    y = tl.load(y_ptr + row * stride_yt + offs_n, mask=mask_n, other=0.0)
    tl.store(y_ptr + row * stride_yt + offs_n, (y.to(tl.float32) + acc).to(y_ptr.dtype.element_ty), mask=mask_n)


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["order_ptr", "chunk_slots_ptr", "chunk_starts_ptr", "chunk_lens_ptr"],
)
def _expand_tiles_kernel(
    y_ptr, h_ptr, b_ptr, ranks_ptr, order_ptr, chunk_slots_ptr, chunk_starts_ptr, chunk_lens_ptr, num_rows, max_rank,
    stride_yt, stride_bslot, stride_bn,
    SLICE_SIZES: tl.constexpr, NUM_PARTS: tl.constexpr, NUM_SLICES: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    wait_for_inputs(OVERLAPS)
    # --- which tile is mine ---
    chunk = tl.program_id(0)
    num_mine = tl.load(chunk_lens_ptr + chunk)
    if num_mine == 0:
        return  # no such chunk in this step
    slot = tl.load(chunk_slots_ptr + chunk).to(tl.int64)
    slice_id, first_n, end_n = _columns(tl.program_id(1), SLICE_SIZES, NUM_SLICES, BLOCK_N)
    rank = tl.load(ranks_ptr + slot * NUM_SLICES + slice_id)
    if rank == 0:
        return  # the adapter leaves this slice alone
    offs_m = tl.arange(0, BLOCK_M)
    mask_m = offs_m < num_mine
    rows = tl.load(order_ptr + tl.load(chunk_starts_ptr + chunk) + offs_m, mask=mask_m, other=0).to(tl.int64)
    offs_n = first_n + tl.arange(0, BLOCK_N)
    mask_n = offs_n < end_n
    mask_mn = mask_m[:, None] & mask_n[None, :]
    columns_ptr = b_ptr + slot * stride_bslot + offs_n.to(tl.int64) * stride_bn
    # --- load ---
    y_tile_ptr = y_ptr + rows[:, None] * stride_yt + offs_n[None, :]
    y = tl.load(y_tile_ptr, mask=mask_mn, other=0.0)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first_r in range(0, rank, BLOCK_R):
        offs_r = first_r + tl.arange(0, BLOCK_R)
        mask_r = offs_r < rank
        whole_r = offs_r // VECTOR * VECTOR < rank  # whole vectors, so that a load is one instruction
        b = tl.load(columns_ptr[None, :] + offs_r[:, None], mask=whole_r[:, None] & mask_n[None, :], other=0.0)
        b = tl.where(mask_r[:, None], b, 0.0)
        h = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        for part in tl.static_range(NUM_PARTS):
            rows_ptr = h_ptr + ((part * num_rows + rows[:, None]) * NUM_SLICES + slice_id) * max_rank
            h += tl.load(rows_ptr + offs_r[None, :], mask=mask_m[:, None] & mask_r[None, :], other=0.0)
        # --- compute (fp32) ---
        acc = tl.dot(h, b.to(tl.float32), acc, input_precision=PRECISION)
    # --- store ---
    tl.store(y_tile_ptr, (y.to(tl.float32) + acc).to(y_ptr.dtype.element_ty), mask=mask_mn)


RANK_BLOCK = 16
"""Ranks at a time, see `lora_shrink`."""

ROW_BLOCKS = ((16, (128, 4)), (1 << 30, (512, 4)))
"""(up to so many rows, (BLOCK_N, warps)). H200, 2026-11-30."""

TILE_BLOCKS = {16: (256, 4), 32: (128, 4), 64: (128, 4), 128: (128, 8)}
"""chunk size: (BLOCK_N, warps). H200, 2026-11-30."""
