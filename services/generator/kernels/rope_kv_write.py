"""Rotary embedding of queries and keys and the write of keys and values to the paged cache, in one launch.

Semantics:  rotated[t] = rotate(norm(q and k of qkv[t]));  key_cache[slot_t] = k of rotated[t];  value_cache[slot_t] = v of qkv[t]
            rotate: (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of a head; norm: RMS norm of a head where the model
            has it; both fp32, rounded once. Tokens at slot -1 (padding of a graph) write no slot.
Source:     RoFormer, arXiv:2104.09864, §3.4.2; head norms: Qwen3 Technical Report, arXiv:2505.09388, §2. Rows of the table come per
            token, so that three-axis rotary positions are nothing special here.
Tile map:   program (t, j) takes heads [j*BLOCK_H, …) of token t, counted over q, k and v.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import (
    KernelArgumentError,
    check_cache,
    check_dtype,
    check_floats,
    check_last_axis,
    check_shape,
)
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def rope_kv_write(
    rotated: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    qkv: Tensor,
    table_rows: Tensor | None,
    slot_mapping: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Rotate and store the heads of each token.

    Args:
        rotated: [T, Hq + Hkv, D], query heads and key heads; may lie over those in `qkv`. Mutated.
        key_cache: [slots, Hkv, D] of one layer. Mutated.
        value_cache: likewise, same strides. Mutated.
        qkv: [T, (Hq + 2 Hkv) D] fp16, bf16 or fp32, the projection's output.
        table_rows: [T, D] in any of these dtypes: D/2 cosines, D/2 sines of each token; None where a layer does not rotate.
        slot_mapping: [T] int64, each slot at most once.
        q_norm: [D] weights of the norm of query heads, or None for no norms.
        k_norm: likewise of key heads; both or neither.
        eps: of the norms.
            All but the table of one dtype, and contiguous on the last axis.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_shape("rotated", rotated, None, None, None)
    check_shape("key_cache", key_cache, None, None, None)
    num_kv_heads = key_cache.shape[1]
    num_tokens, num_heads, head_dim = len(rotated), rotated.shape[1] - num_kv_heads, rotated.shape[2]
    check_cache(rotated[:, :num_heads], key_cache, value_cache)
    check_shape("qkv", qkv, num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    check_shape("slot_mapping", slot_mapping, num_tokens)
    check_dtype(torch.int64, slot_mapping=slot_mapping)
    check_floats(rotated=rotated, qkv=qkv)
    check_last_axis(rotated=rotated, qkv=qkv)
    if table_rows is not None:
        check_shape("table_rows", table_rows, num_tokens, head_dim)
        check_last_axis(table_rows=table_rows)
    if (q_norm is None) != (k_norm is None):
        raise KernelArgumentError("q_norm and k_norm are given both or not at all")
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None:
            check_shape(name, weight, head_dim)
            check_floats(qkv=qkv, **{name: weight})
    table = qkv if table_rows is None else table_rows  # never read where there is none
    _rope_kv_write_kernel[(num_tokens, triton.cdiv(num_heads + 2 * num_kv_heads, BLOCK_H))](
        rotated, key_cache, value_cache, qkv, table, slot_mapping,
        qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm, eps,
        rotated.stride(0), rotated.stride(1), key_cache.stride(0), key_cache.stride(1), qkv.stride(0), table.stride(0),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HALF=head_dim // 2,
        HAS_ROPE=table_rows is not None, HAS_NORM=q_norm is not None,
        BLOCK_H=BLOCK_H, BLOCK_D=triton.next_power_of_2(head_dim // 2), num_warps=NUM_WARPS, **overlap_options(qkv),
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["slot_mapping_ptr"])
def _rope_kv_write_kernel(
    rotated_ptr, key_ptr, value_ptr, qkv_ptr, table_ptr, slot_mapping_ptr, q_norm_ptr, k_norm_ptr, eps,
    stride_rotatedt, stride_rotatedh, stride_cacheslot, stride_cacheh, stride_qkvt, stride_tablet,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    HAS_ROPE: tl.constexpr, HAS_NORM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d[None, :] < HALF
    mask = (offs_h[:, None] < NUM_HEADS + 2 * NUM_KV_HEADS) & mask_d
    is_query = offs_h[:, None] < NUM_HEADS
    is_value = offs_h[:, None] >= NUM_HEADS + NUM_KV_HEADS
    wait_for_inputs(OVERLAPS)
    # --- load ---
    heads_ptr = qkv_ptr + token * stride_qkvt + offs_h[:, None] * (2 * HALF) + offs_d[None, :]
    given_a = tl.load(heads_ptr, mask=mask, other=0.0)
    given_b = tl.load(heads_ptr + HALF, mask=mask, other=0.0)
    # --- compute (fp32) ---
    a = given_a.to(tl.float32)
    b = given_b.to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * HALF) + eps)[:, None]
        a *= scale * _head_weight(q_norm_ptr, k_norm_ptr, offs_d, HALF, is_query)
        b *= scale * _head_weight(q_norm_ptr + HALF, k_norm_ptr + HALF, offs_d, HALF, is_query)
    if HAS_ROPE:
        cos_ptr = table_ptr + token * stride_tablet + offs_d[None, :]
        cos = tl.load(cos_ptr, mask=mask_d, other=0.0).to(tl.float32)
        sin = tl.load(cos_ptr + HALF, mask=mask_d, other=0.0).to(tl.float32)
        rotated_a = a * cos - b * sin
        b = b * cos + a * sin
        a = rotated_a
    a = tl.where(is_value, given_a, a.to(given_a.dtype))
    b = tl.where(is_value, given_b, b.to(given_b.dtype))
    # --- store ---
    out_ptr = rotated_ptr + token * stride_rotatedt + offs_h[:, None] * stride_rotatedh + offs_d[None, :]
    tl.store(out_ptr, a, mask=mask & (is_value == 0))
    tl.store(out_ptr + HALF, b, mask=mask & (is_value == 0))
    is_token = slot >= 0
    key_head = offs_h[:, None] - NUM_HEADS
    out_ptr = key_ptr + slot * stride_cacheslot + key_head * stride_cacheh + offs_d[None, :]
    mask_key = mask & (key_head >= 0) & (is_value == 0) & is_token
    tl.store(out_ptr, a, mask=mask_key)
    tl.store(out_ptr + HALF, b, mask=mask_key)
    out_ptr = value_ptr + slot * stride_cacheslot + (key_head - NUM_KV_HEADS) * stride_cacheh + offs_d[None, :]
    tl.store(out_ptr, a, mask=mask & is_value & is_token)
    tl.store(out_ptr + HALF, b, mask=mask & is_value & is_token)


@triton.jit
def _head_weight(q_norm_ptr, k_norm_ptr, offs_d, HALF: tl.constexpr, is_query):
    """[BLOCK_H, BLOCK_D] weights of the norm: of query heads or of key heads; values ignore it."""
    mask_d = offs_d[None, :] < HALF
    q_weight = tl.load(q_norm_ptr + offs_d[None, :], mask=mask_d, other=0.0).to(tl.float32)
    k_weight = tl.load(k_norm_ptr + offs_d[None, :], mask=mask_d, other=0.0).to(tl.float32)
    return tl.where(is_query, q_weight, k_weight)


BLOCK_H, NUM_WARPS = 8, 4
"""H200, 2026-11-30."""
