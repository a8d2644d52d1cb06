"""Rotary embedding of queries and keys and the write of keys and values to the paged cache, in one launch.

Semantics:  with adapters, qkv[t] += delta[t] first, rounded to its dtype; delta as in `lora_delta`, 0 in rows at NO_ADAPTER.
            query[t] = rotate(norm(q of qkv[t]));  key_cache[slot_t] = rotate(norm(k of qkv[t]));  value_cache[slot_t] = v of qkv[t]
            rotate: (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of a head; norm: RMS norm of a head where the model
            has it; both fp32, rounded once. Tokens at slot -1 (padding of a graph) write their query only.
Source:     RoFormer, arXiv:2104.09864, §3.4.2; head norms: Qwen3 Technical Report, arXiv:2505.09388, §2. Rows of the table come per
            token, so that three-axis rotary positions are nothing special here.
Tile map:   program (t, j) takes heads [j*BLOCK_H, …) of token t, counted over q, k and v.
"""

from typing import NamedTuple

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
from services.generator.kernels.lora_delta import RANK_BLOCK, check_delta, h_strides, vector
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


class RowAdapters(NamedTuple):
    """What the projection still lacks, row by row.

    Attributes:
        row_slots: [T] int32.
        h: [parts, T, H, 3, R], b: [slots, out, R], ranks, scales: see `check_delta`.
    """

    h: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor
    row_slots: Tensor


def rope_kv_write(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    qkv: Tensor,
    table_rows: Tensor | None,
    slot_mapping: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    adapters: RowAdapters | None = None,
) -> None:
    """Rotate and store the heads of each token.

    Args:
        query: [T, Hq, D]; may lie over the queries in `qkv`. Mutated.
        key_cache: [slots, Hkv, D] of one layer. Mutated.
        value_cache: likewise, same strides. Mutated.
        qkv: [T, (Hq + 2 Hkv) D] fp16, bf16 or fp32, the projection's output.
        table_rows: [T, D] in any of these dtypes: D/2 cosines, D/2 sines of each token; None where a layer does not rotate.
        slot_mapping: [T] int64, each slot at most once.
        q_norm: [D] weights of the norm of query heads, or None for no norms.
        k_norm: likewise of key heads; both or neither.
        eps: of the norms.
        adapters: None where `qkv` is complete.
            All but the table of one dtype, and contiguous on the last axis.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_shape("query", query, None, None, None)
    num_tokens, num_heads, head_dim = query.shape
    check_cache(query, key_cache, value_cache)
    num_kv_heads = key_cache.shape[1]
    check_shape("qkv", qkv, num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    check_shape("slot_mapping", slot_mapping, num_tokens)
    check_dtype(torch.int64, slot_mapping=slot_mapping)
    check_floats(query=query, qkv=qkv)
    check_last_axis(query=query, qkv=qkv)
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
    lora, lora_strides, lora_sizes = _lora_arguments(qkv, adapters)
    block_h = BLOCK_H if adapters is None else ADAPTED_BLOCK_H
    _rope_kv_write_kernel[(num_tokens, triton.cdiv(num_heads + 2 * num_kv_heads, block_h))](
        query, key_cache, value_cache, qkv, table, slot_mapping,
        qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm, eps, *lora,
        query.stride(0), query.stride(1), key_cache.stride(0), key_cache.stride(1), qkv.stride(0), table.stride(0), *lora_strides,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HALF=head_dim // 2,
        HAS_ROPE=table_rows is not None, HAS_NORM=q_norm is not None, HAS_ADAPTERS=adapters is not None, **lora_sizes,
        BLOCK_H=block_h, BLOCK_D=triton.next_power_of_2(head_dim // 2), num_warps=NUM_WARPS, **overlap_options(qkv),
    )  # fmt: skip


def _lora_arguments(
    qkv: Tensor, adapters: RowAdapters | None
) -> tuple[tuple[Tensor | int, ...], tuple[int, ...], dict[str, int]]:
    """Pointers and sizes, strides, constants; such as are never used where there are no adapters."""
    if adapters is None:
        return (qkv, qkv, qkv, qkv, qkv, 0), (0, 0, 0, 0, 0), {"NUM_PARTS": 1, "BLOCK_R": 1, "VECTOR": 1}
    h, b, ranks, scales, row_slots = adapters
    check_shape("b", b, None, qkv.shape[1], None)
    check_shape("ranks", ranks, None, 3)
    check_delta(len(qkv), h, b, ranks, scales)
    check_floats(qkv=qkv, b=b)
    check_shape("row_slots", row_slots, len(qkv))
    check_dtype(torch.int32, row_slots=row_slots)
    max_rank = b.shape[2]
    sizes = {"NUM_PARTS": len(h), "BLOCK_R": RANK_BLOCK, "VECTOR": vector(max_rank)}
    return (*adapters, max_rank), (*h_strides(h), b.stride(0), b.stride(1)), sizes


@triton.jit(do_not_specialize_on_alignment=["slot_mapping_ptr", "row_slots_ptr"])
def _rope_kv_write_kernel(
    query_ptr, key_ptr, value_ptr, qkv_ptr, table_ptr, slot_mapping_ptr, q_norm_ptr, k_norm_ptr, eps,
    h_ptr, b_ptr, ranks_ptr, scales_ptr, row_slots_ptr, max_rank,
    stride_queryt, stride_queryh, stride_cacheslot, stride_cacheh, stride_qkvt, stride_tablet,
    stride_hp, stride_ht, stride_hslot, stride_bslot, stride_bn,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    HAS_ROPE: tl.constexpr, HAS_NORM: tl.constexpr, HAS_ADAPTERS: tl.constexpr,
    NUM_PARTS: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
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
    if HAS_ADAPTERS:
        adapter = tl.load(row_slots_ptr + token).to(tl.int64)
        slice_id = (offs_h >= NUM_HEADS).to(tl.int32) + (offs_h >= NUM_HEADS + NUM_KV_HEADS).to(tl.int32)
        is_adapted = (offs_h < NUM_HEADS + 2 * NUM_KV_HEADS) & (adapter >= 0)
        rank = tl.load(ranks_ptr + adapter * 3 + slice_id, mask=is_adapted, other=0)
        scale = tl.load(scales_ptr + adapter * 3 + slice_id, mask=is_adapted, other=0.0)
        delta_a, delta_b = _head_deltas(
            h_ptr + token * stride_ht + adapter * stride_hslot + slice_id[:, None] * max_rank,
            b_ptr + adapter * stride_bslot + (offs_h[:, None] * (2 * HALF) + offs_d[None, :]) * stride_bn,
            mask, rank, stride_hp, HALF * stride_bn, NUM_PARTS, BLOCK_H, BLOCK_D, BLOCK_R, VECTOR, OVERLAPS,
        )  # fmt: skip
    wait_for_inputs(OVERLAPS)
    # --- load ---
    heads_ptr = qkv_ptr + token * stride_qkvt + offs_h[:, None] * (2 * HALF) + offs_d[None, :]
    given_a = tl.load(heads_ptr, mask=mask, other=0.0)
    given_b = tl.load(heads_ptr + HALF, mask=mask, other=0.0)
    if HAS_ADAPTERS:
        given_a = (given_a.to(tl.float32) + delta_a * scale[:, None]).to(given_a.dtype)
        given_b = (given_b.to(tl.float32) + delta_b * scale[:, None]).to(given_b.dtype)
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
    out_ptr = query_ptr + token * stride_queryt + offs_h[:, None] * stride_queryh + offs_d[None, :]
    tl.store(out_ptr, a, mask=mask & is_query)
    tl.store(out_ptr + HALF, b, mask=mask & is_query)
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
def _head_deltas(
    h_ptr, columns_ptr, mask, rank, stride_hp, half_bn,
    NUM_PARTS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """[BLOCK_H, BLOCK_D] twice, without the scale: what the adapter adds to the halves of heads whose columns of B are given."""
    delta_a = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    delta_b = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for first_r in range(0, tl.max(rank, axis=0), BLOCK_R):
        offs_r = first_r + tl.arange(0, BLOCK_R)
        mask_r = offs_r[None, :] < rank[:, None]
        whole_r = offs_r[None, :] // VECTOR * VECTOR < rank[:, None]  # whole vectors, so that a load is one instruction
        weights_ptr = columns_ptr[:, :, None] + offs_r[None, None, :]
        mask_b = mask[:, :, None] & whole_r[:, None, :]
        of_a = tl.load(weights_ptr, mask=mask_b, other=0.0)
        of_b = tl.load(weights_ptr + half_bn, mask=mask_b, other=0.0)
        wait_for_inputs(OVERLAPS)  # after the weights, which are most of what is read
        h = tl.zeros([BLOCK_H, BLOCK_R], tl.float32)
        for part in tl.static_range(NUM_PARTS):
            h += tl.load(h_ptr + part * stride_hp + offs_r[None, :], mask=mask_r, other=0.0).to(tl.float32)
        delta_a += tl.sum(tl.where(mask_r[:, None, :], of_a, 0.0).to(tl.float32) * h[:, None, :], axis=2)
        delta_b += tl.sum(tl.where(mask_r[:, None, :], of_b, 0.0).to(tl.float32) * h[:, None, :], axis=2)
    return delta_a, delta_b


@triton.jit
def _head_weight(q_norm_ptr, k_norm_ptr, offs_d, HALF: tl.constexpr, is_query):
    """[BLOCK_H, BLOCK_D] weights of the norm: of query heads or of key heads; values ignore it."""
    mask_d = offs_d[None, :] < HALF
    q_weight = tl.load(q_norm_ptr + offs_d[None, :], mask=mask_d, other=0.0).to(tl.float32)
    k_weight = tl.load(k_norm_ptr + offs_d[None, :], mask=mask_d, other=0.0).to(tl.float32)
    return tl.where(is_query, q_weight, k_weight)


BLOCK_H, ADAPTED_BLOCK_H, NUM_WARPS = 8, 4, 4
"""H200, 2026-11-30."""
