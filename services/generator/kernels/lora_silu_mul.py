"""The end of a gated MLP's first projection in one launch: every row's adapter, then SiLU of the gate times the up projection.

Semantics:  out[t, f] = silu(g) · u, g = gate_up[t, f] + delta[t, f], u = gate_up[t, F + f] + delta[t, F + f]; delta as in
            `lora_delta`, 0 in rows at NO_ADAPTER; fp32, rounded once.
Source:     GLU Variants Improve Transformer, arXiv:2002.05202, §2; LoRA, arXiv:2106.09685, §4.1.
Tile map:   rows:  program (t, j) computes columns of tile j of row t.
            tiles: program (c, j) computes columns of tile j of the rows of chunk c, which may be base rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import check_floats, check_last_axis, check_segments, check_shape
from services.generator.kernels.lora_delta import check_delta, h_strides, row_delta, tile_delta, tile_sizes, vector
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def lora_silu_mul(
    out: Tensor,
    gate_up: Tensor,
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
) -> None:
    """Activation of a gated MLP whose first projection lacks its adapters.

    Args:
        out: [T, F]. Mutated.
        gate_up: [T, 2 F] fp16, bf16 or fp32, gate and up side by side; both tensors contiguous on the last axis.
        h: [parts, T, H, 2, R], b: [slots, 2 F, R], ranks, scales and the rest: see `lora_expand`.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_floats(out=out, gate_up=gate_up, b=b)
    check_last_axis(out=out, gate_up=gate_up)
    check_shape("out", out, None, None)
    num_rows, width = out.shape
    check_shape("gate_up", gate_up, num_rows, 2 * width)
    check_shape("b", b, None, 2 * width, None)
    check_shape("ranks", ranks, None, 2)
    check_delta(num_rows, h, b, ranks, scales)
    check_segments(num_rows, row_slots, token_order, chunk_slots, chunk_starts, chunk_lens)
    parts, max_rank = len(h), h.shape[4]
    strides = (out.stride(0), gate_up.stride(0), *h_strides(h), b.stride(0), b.stride(1))
    sizes = {"NUM_PARTS": parts, "VECTOR": vector(max_rank)}
    if chunk_size == 1:
        block_f, num_warps = ROW_BLOCK
        _lora_silu_mul_rows_kernel[(num_rows, triton.cdiv(width, block_f))](
            out, gate_up, h, b, ranks, scales, row_slots, width, max_rank, *strides,
            BLOCK_F=block_f, num_warps=num_warps, **sizes, **overlap_options(out),
        )  # fmt: skip
        return
    most_columns, num_warps = TILE_BLOCKS[chunk_size]
    block_r, block_f = tile_sizes(max_rank, most_columns)
    _lora_silu_mul_tiles_kernel[(len(chunk_slots), triton.cdiv(width, block_f))](
        out, gate_up, h, b, ranks, scales, token_order, chunk_slots, chunk_starts, chunk_lens, width, max_rank, *strides,
        BLOCK_M=chunk_size, BLOCK_F=block_f, BLOCK_R=block_r, PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
        num_warps=num_warps, **sizes, **overlap_options(out),
    )  # fmt: skip


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _rank_and_scale(ranks_ptr, scales_ptr, slot, half):
    """Of the gate (0) or the up projection (1) of the adapter in a slot; zeros where there is none."""
    has_adapter = slot >= 0
    rank = tl.load(ranks_ptr + slot * 2 + half, mask=has_adapter, other=0)
    scale = tl.load(scales_ptr + slot * 2 + half, mask=has_adapter, other=0.0)
    return rank, scale


@triton.jit(do_not_specialize_on_alignment=["row_slots_ptr"])
def _lora_silu_mul_rows_kernel(
    out_ptr, gate_up_ptr, h_ptr, b_ptr, ranks_ptr, scales_ptr, row_slots_ptr, width, max_rank,
    stride_outt, stride_gate_upt, stride_hp, stride_ht, stride_hslot, stride_bslot, stride_bn,
    NUM_PARTS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_F: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    row = tl.program_id(0).to(tl.int64)
    offs_f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask_f = offs_f < width
    slot = tl.load(row_slots_ptr + row).to(tl.int64)
    gate_rank, gate_scale = _rank_and_scale(ranks_ptr, scales_ptr, slot, 0)
    up_rank, up_scale = _rank_and_scale(ranks_ptr, scales_ptr, slot, 1)
    h_ptr += row * stride_ht + slot * stride_hslot
    b_ptr += slot * stride_bslot
    # --- compute (fp32) ---
    gate_delta = row_delta(
        h_ptr, b_ptr, offs_f, mask_f, gate_rank, gate_scale, stride_hp, stride_bn,
        NUM_PARTS, BLOCK_F, VECTOR, OVERLAPS,
    )  # fmt: skip
    up_delta = row_delta(
        h_ptr + max_rank, b_ptr, width + offs_f, mask_f, up_rank, up_scale, stride_hp, stride_bn,
        NUM_PARTS, BLOCK_F, VECTOR, OVERLAPS,
    )  # fmt: skip
    gate_ptr = gate_up_ptr + row * stride_gate_upt + offs_f
    gate = tl.load(gate_ptr, mask=mask_f, other=0.0).to(tl.float32) + gate_delta
    up = tl.load(gate_ptr + width, mask=mask_f, other=0.0).to(tl.float32) + up_delta
    # --- store ---
    tl.store(out_ptr + row * stride_outt + offs_f, (_silu(gate) * up).to(out_ptr.dtype.element_ty), mask=mask_f)


@triton.jit(do_not_specialize_on_alignment=["order_ptr", "chunk_slots_ptr", "chunk_starts_ptr", "chunk_lens_ptr"])
def _lora_silu_mul_tiles_kernel(
    out_ptr, gate_up_ptr, h_ptr, b_ptr, ranks_ptr, scales_ptr,
    order_ptr, chunk_slots_ptr, chunk_starts_ptr, chunk_lens_ptr, width, max_rank,
    stride_outt, stride_gate_upt, stride_hp, stride_ht, stride_hslot, stride_bslot, stride_bn,
    NUM_PARTS: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    chunk = tl.program_id(0)
    num_mine = tl.load(chunk_lens_ptr + chunk)
    if num_mine == 0:
        wait_for_inputs(OVERLAPS)  # else this kernel might end before those that it follows
        return  # no such chunk in this step
    slot = tl.load(chunk_slots_ptr + chunk).to(tl.int64)
    gate_rank, gate_scale = _rank_and_scale(ranks_ptr, scales_ptr, slot, 0)
    up_rank, up_scale = _rank_and_scale(ranks_ptr, scales_ptr, slot, 1)
    offs_m = tl.arange(0, BLOCK_M)
    mask_m = offs_m < num_mine
    rows = tl.load(order_ptr + tl.load(chunk_starts_ptr + chunk) + offs_m, mask=mask_m, other=0).to(tl.int64)
    offs_f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask_f = offs_f < width
    h_ptr += slot * stride_hslot
    b_ptr += slot * stride_bslot
    # --- compute (fp32) ---
    gate_delta = tile_delta(
        h_ptr, b_ptr, rows, mask_m, offs_f, mask_f, gate_rank, gate_scale, stride_hp, stride_ht, stride_bn,
        NUM_PARTS, BLOCK_M, BLOCK_F, BLOCK_R, VECTOR, PRECISION, OVERLAPS,
    )  # fmt: skip
    up_delta = tile_delta(
        h_ptr + max_rank, b_ptr, rows, mask_m, width + offs_f, mask_f, up_rank, up_scale, stride_hp, stride_ht, stride_bn,
        NUM_PARTS, BLOCK_M, BLOCK_F, BLOCK_R, VECTOR, PRECISION, OVERLAPS,
    )  # fmt: skip
    mask = mask_m[:, None] & mask_f[None, :]
    gate_ptr = gate_up_ptr + rows[:, None] * stride_gate_upt + offs_f[None, :]
    gate = tl.load(gate_ptr, mask=mask, other=0.0).to(tl.float32) + gate_delta
    up = tl.load(gate_ptr + width, mask=mask, other=0.0).to(tl.float32) + up_delta
    # --- store ---
    out = (_silu(gate) * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows[:, None] * stride_outt + offs_f[None, :], out, mask=mask)


ROW_BLOCK = (512, 4)
"""(BLOCK_F, warps)."""

TILE_BLOCKS = {16: (128, 4), 32: (128, 4), 64: (64, 4), 128: (64, 8)}
"""chunk size: (the most that BLOCK_F may be, warps)."""
