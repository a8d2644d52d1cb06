"""RMS norm, with the residual sum that comes before it in the same launch.

Semantics:  residual[t] += Σ_p x[p, t];  out[t] = residual[t] / sqrt(mean(residual[t]²) + eps) · weight
            or, without a residual, the same of x[t]. The sum is rounded to the dtype, as the next layer reads it; the rest is fp32.
Source:     Root Mean Square Layer Normalization, arXiv:1910.07467, §4.
Tile map:   program t computes row t.
"""

import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import check_floats, check_fp32_or_like, check_last_axis, check_shape
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> None:
    """Norm of each row.

    Args:
        out: [T, C] fp16, bf16 or fp32, may be `x` itself. Mutated.
        x: [T, C], or with a residual [parts, T, C], as `skinny_linear` leaves it; may also be fp32.
        weight: [C].
        residual: [T, C], or None for no sum. Mutated.
            All of one dtype but for that, and contiguous on the last axis.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    parts = x if residual is not None and x.dim() == 3 else x[None]
    total = x if residual is None else residual
    check_floats(out=out, weight=weight, residual=total)
    check_fp32_or_like(out, x=x)
    check_last_axis(out=out, x=x, weight=weight, residual=total)
    check_shape("x", parts, None, None, None)
    num_parts, num_rows, width = parts.shape
    check_shape("weight", weight, width)
    check_shape("out", out, num_rows, width)
    check_shape("residual", total, num_rows, width)
    block_c = triton.next_power_of_2(width)
    num_warps = next(warps for limit, warps in WARPS if block_c * num_parts <= limit)
    _rms_norm_kernel[(num_rows,)](
        out, total, parts, weight, width, eps, out.stride(0), total.stride(0), parts.stride(0), parts.stride(1),
        NUM_PARTS=num_parts, HAS_RESIDUAL=residual is not None, BLOCK_C=block_c,
        num_warps=num_warps, **overlap_options(x),
    )  # fmt: skip


@triton.jit(do_not_specialize=["stride_xp"])
def _rms_norm_kernel(
    out_ptr, residual_ptr, x_ptr, weight_ptr, width, eps, stride_outt, stride_residualt, stride_xp, stride_xt,
    NUM_PARTS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, BLOCK_C: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    row = tl.program_id(0).to(tl.int64)
    offs_c = tl.arange(0, BLOCK_C)
    mask_c = offs_c < width
    # --- load ---
    weight = tl.load(weight_ptr + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    wait_for_inputs(OVERLAPS)
    x = sum_of_parts(x_ptr + row * stride_xt + offs_c, mask_c, stride_xp, NUM_PARTS)
    # --- compute (fp32) ---
    if HAS_RESIDUAL:
        x = add_to_residual(residual_ptr + row * stride_residualt + offs_c, mask_c, x)
    # --- store ---
    store_norm(out_ptr + row * stride_outt + offs_c, mask_c, x, weight, width, eps)


@triton.jit
def sum_of_parts(x_ptr, mask_c, stride_xp, NUM_PARTS: tl.constexpr):
    """[BLOCK_C] fp32 of the row that `x_ptr` points at."""
    x = tl.load(x_ptr, mask=mask_c, other=0.0).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        x += tl.load(x_ptr + part * stride_xp, mask=mask_c, other=0.0).to(tl.float32)
    return x


@triton.jit
def add_to_residual(residual_ptr, mask_c, x):
    """The sum, also stored, in fp32 but as it was rounded."""
    total = x + tl.load(residual_ptr, mask=mask_c, other=0.0).to(tl.float32)
    rounded = total.to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr, rounded, mask=mask_c)
    return rounded.to(tl.float32)


@triton.jit
def store_norm(out_ptr, mask_c, x, weight, width, eps):
    """The norm of a row [BLOCK_C] fp32, zero beyond its width."""
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    tl.store(out_ptr, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask_c)


WARPS = ((1024, 2), (2048, 4), (4096, 8), (1 << 30, 16))
"""(up to so many numbers of a row in all its parts, warps). H200, 2026-11-30."""
