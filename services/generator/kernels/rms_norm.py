"""RMS norm, with the residual sum that comes before it in the same launch.

Semantics:  residual[t] += x[t];  out[t] = residual[t] / sqrt(mean(residual[t]²) + eps) · weight
            or, without a residual, the same of x[t]. The sum is rounded to the dtype, as the next layer reads it; the rest is fp32.
Source:     Root Mean Square Layer Normalization, arXiv:1910.07467, §4.
Tile map:   program t computes row t.
"""

import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import check_floats, check_last_axis, check_shape
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> None:
    """Norm of each row.

    Args:
        out: [T, C], may be `x` itself. Mutated.
        x: [T, C] fp16, bf16 or fp32.
        weight: [C].
        residual: [T, C], or None for no sum. Mutated.
            All of one dtype and contiguous on the last axis.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    total = x if residual is None else residual
    check_floats(out=out, x=x, weight=weight, residual=total)
    check_last_axis(out=out, x=x, weight=weight, residual=total)
    check_shape("x", x, None, None)
    num_rows, width = x.shape
    check_shape("weight", weight, width)
    check_shape("out", out, num_rows, width)
    check_shape("residual", total, num_rows, width)
    block_c = triton.next_power_of_2(width)
    num_warps = next(warps for limit, warps in WARPS if block_c <= limit)
    _rms_norm_kernel[(num_rows,)](
        out, total, x, weight, width, eps, out.stride(0), total.stride(0), x.stride(0),
        HAS_RESIDUAL=residual is not None, BLOCK_C=block_c, num_warps=num_warps, **overlap_options(x),
    )  # fmt: skip


@triton.jit
def _rms_norm_kernel(
    out_ptr, residual_ptr, x_ptr, weight_ptr, width, eps, stride_outt, stride_residualt, stride_xt,
    HAS_RESIDUAL: tl.constexpr, BLOCK_C: tl.constexpr,
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
    x = tl.load(x_ptr + row * stride_xt + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    # --- compute (fp32) ---
    if HAS_RESIDUAL:
        residual_row_ptr = residual_ptr + row * stride_residualt + offs_c
        total = (x + tl.load(residual_row_ptr, mask=mask_c, other=0.0).to(tl.float32)).to(out_ptr.dtype.element_ty)
        tl.store(residual_row_ptr, total, mask=mask_c)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    # --- store ---
    tl.store(out_ptr + row * stride_outt + offs_c, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask_c)


WARPS = ((1024, 2), (4096, 4), (8192, 8), (1 << 30, 16))
"""(up to so wide, warps). H200, 2026-11-30."""
