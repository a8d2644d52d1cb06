"""The wide side of LoRA inside of a kernel: what an adapter adds to some columns of one row, or of the rows of a chunk.

Semantics:  delta[t, n] = scale · Σ_r B[n, r] · (Σ_p h[p, t, r]), r below the adapter's rank; fp32.
Source:     LoRA, arXiv:2106.09685, §4.1.
Called by the kernels that end a projection: `lora_expand`, and `lora_silu_mul` where the activation follows. Weights are loaded
before the wait for what earlier kernels wrote, which of what is read here is nothing but `h`; it is over when these return.
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
    check_shape,
)
from services.generator.kernels.overlap import wait_for_inputs

RANK_BLOCK = tl.constexpr(16)
"""Ranks at a time: an adapter of rank 8 leaves half of the lanes idle, but loads nothing for them."""

MAX_RANK_BLOCK = 64
"""The most at a time in tiles, of adapters that have more than RANK_BLOCK: a turn waits for what it loads. H200, 2026-12-01, qkv, o
and down of one layer: 64 rows of 4 adapters of rank 64 take 29 µs, and 59 by 16 at a time; of rank 16 23, and 27 by 64."""

MAX_TILE = 8192
"""Numbers of B that a program holds."""


def check_delta(num_rows: int, h: Tensor, b: Tensor, ranks: Tensor, scales: Tensor) -> None:
    """Raise unless these are one projection's.

    Args:
        h: [parts, T, H, slices, R] fp16, bf16 or fp32, H being 1 where each row has the intermediate of its own adapter only, the
            number of slots or fewer where it has those of the first H slots; contiguous on its last two axes.
        b: [slots, out, R], contiguous on its last axis.
        ranks: [slots, slices] int32, contiguous.
        scales: [slots, slices] fp32, contiguous.
    """
    check_shape("b", b, None, None, None)
    num_slots, _, max_rank = b.shape
    check_shape("ranks", ranks, num_slots, None)
    check_shape("scales", scales, *ranks.shape)
    check_shape("h", h, None, num_rows, None, ranks.shape[1], max_rank)
    check_last_axis(b=b, h=h)
    check_floats(h=h)
    check_dtype(torch.int32, ranks=ranks)
    check_dtype(torch.float32, scales=scales)
    check_contiguous(ranks=ranks, scales=scales)
    if h.shape[3] > 1 and h.stride(3) != max_rank:
        raise KernelArgumentError(f"h must be contiguous on its last two axes; strides are {h.stride()}")


def h_strides(h: Tensor) -> tuple[int, int, int]:
    """Of parts, rows and slots; 0 for slots where a row has one intermediate only."""
    return h.stride(0), h.stride(1), 0 if h.shape[2] == 1 else h.stride(2)


def vector(max_rank: int) -> int:
    """Ranks that may be loaded together although the adapter has fewer: they lie within the same row of the bank."""
    return 8 if max_rank % 8 == 0 else 1


def tile_sizes(max_rank: int, most_columns: int) -> tuple[int, int]:
    """Ranks at a time and columns of a program, for tiles of a bank of that rank."""
    block_r = min(max(triton.next_power_of_2(max_rank), RANK_BLOCK.value), MAX_RANK_BLOCK)
    return block_r, min(most_columns, MAX_TILE // block_r)


@triton.jit
def row_delta(
    h_ptr, b_ptr, offs_n, mask_n, rank, scale, stride_hp, stride_bn,
    NUM_PARTS: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """[BLOCK_N] of the row that `h_ptr` points at, with the adapter that `b_ptr` points at; zeros where `rank` is 0."""
    BLOCK_P: tl.constexpr = triton.next_power_of_2(NUM_PARTS)
    offs_p = tl.arange(0, BLOCK_P)
    columns_ptr = b_ptr + offs_n.to(tl.int64) * stride_bn
    acc = tl.zeros([BLOCK_N], tl.float32)
    for first_r in range(0, rank, RANK_BLOCK):
        offs_r = first_r + tl.arange(0, RANK_BLOCK)
        mask_r = offs_r < rank
        whole_r = offs_r // VECTOR * VECTOR < rank  # whole vectors, so that a load is one instruction
        b = tl.load(columns_ptr[:, None] + offs_r[None, :], mask=mask_n[:, None] & whole_r[None, :], other=0.0)
        b = tl.where(mask_r[None, :], b, 0.0)
        wait_for_inputs(OVERLAPS)  # after the weights, which are most of what is read
        mask_p = (offs_p < NUM_PARTS)[:, None] & mask_r[None, :]
        parts = tl.load(h_ptr + offs_p[:, None] * stride_hp + offs_r[None, :], mask=mask_p, other=0.0)
        acc += tl.sum(b.to(tl.float32) * tl.sum(parts.to(tl.float32), axis=0)[None, :], axis=1)
    wait_for_inputs(OVERLAPS)  # where there was no rank to loop over
    return acc * scale


@triton.jit
def tile_delta(
    h_ptr, b_ptr, rows, mask_m, offs_n, mask_n, rank, scale, stride_hp, stride_ht, stride_bn,
    NUM_PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr,
    PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N] of `rows`, all with the adapter that `b_ptr` points at; zeros where `rank` is 0."""
    b_ptr += offs_n.to(tl.int64)[None, :] * stride_bn
    h_ptr += rows[:, None] * stride_ht
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if BLOCK_R > RANK_BLOCK and rank > RANK_BLOCK:
        # One stage: of more, Triton begins loads of the first turns ahead of the loop, and so of `h` ahead of the wait.
        for first_r in tl.range(0, rank, BLOCK_R, num_stages=1):
            acc = _add_ranks(
                acc, h_ptr, b_ptr, first_r, rank, mask_m, mask_n, stride_hp,
                NUM_PARTS, BLOCK_R, VECTOR, PRECISION, OVERLAPS,
            )  # fmt: skip
    elif rank > 0:
        acc = _add_ranks(
            acc, h_ptr, b_ptr, 0, rank, mask_m, mask_n, stride_hp,
            NUM_PARTS, RANK_BLOCK, VECTOR, PRECISION, OVERLAPS,
        )  # fmt: skip
    wait_for_inputs(OVERLAPS)  # where there is no rank
    return acc * scale


@triton.jit
def _add_ranks(
    acc, h_ptr, b_ptr, first_r, rank, mask_m, mask_n, stride_hp,
    NUM_PARTS: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """`acc` with BLOCK_R ranks from `first_r` on."""
    offs_r = first_r + tl.arange(0, BLOCK_R)
    mask_r = offs_r < rank
    whole_r = offs_r // VECTOR * VECTOR < rank  # whole vectors, so that a load is one instruction
    b = tl.load(b_ptr + offs_r[:, None], mask=whole_r[:, None] & mask_n[None, :], other=0.0)
    b = tl.where(mask_r[:, None], b, 0.0)
    wait_for_inputs(OVERLAPS)  # after the weights, which are most of what is read
    h = tl.zeros([acc.shape[0], BLOCK_R], tl.float32)
    for part in tl.static_range(NUM_PARTS):
        mask_h = mask_m[:, None] & mask_r[None, :]
        h += tl.load(h_ptr + part * stride_hp + offs_r[None, :], mask=mask_h, other=0.0).to(tl.float32)
    return tl.dot(h, b.to(tl.float32), acc, input_precision=PRECISION)
