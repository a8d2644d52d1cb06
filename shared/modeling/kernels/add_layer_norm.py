"""Layer norm of the sum of two tensors in one launch.

Semantics:  s = x[t] + y[t];  out[t] = (s - mean(s)) / sqrt(var(s) + eps) · weight + bias, in fp32, rounded once at the end.
Source:     Layer Normalization, arXiv:1607.06450, §3.
Tile map:   program t computes row t.
"""

import triton
import triton.language as tl
from torch import Tensor

from shared.errors import InternalError


def add_layer_norm(out: Tensor, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float) -> None:
    """Norm of each row of the sum.

    Args:
        out: [T, C], may be `x` or `y` itself. Mutated.
        x, y: [T, C] fp16, bf16 or fp32.
        weight, bias: [C]. All contiguous and of one dtype.
    Raises:
        InternalError: shapes, dtypes or strides do not agree.
    """
    num_rows, width = x.shape
    rows, vectors = (out, x, y), (weight, bias)
    fits = all(tensor.shape == x.shape for tensor in rows) and all(tensor.shape == (width,) for tensor in vectors)
    if not fits or any(tensor.dtype != x.dtype or not tensor.is_contiguous() for tensor in (*rows, *vectors)):
        raise InternalError("add_layer_norm takes contiguous tensors of one dtype and width; this is a bug")
    block_c = triton.next_power_of_2(width)
    num_warps = next(warps for limit, warps in WARPS if block_c <= limit)
    _add_layer_norm_kernel[(num_rows,)](out, x, y, weight, bias, width, eps, BLOCK_C=block_c, num_warps=num_warps)


@triton.jit
def _add_layer_norm_kernel(out_ptr, x_ptr, y_ptr, weight_ptr, bias_ptr, width, eps, BLOCK_C: tl.constexpr):
    # --- which tile is mine ---
    start = tl.program_id(0).to(tl.int64) * width
    offs_c = tl.arange(0, BLOCK_C)
    mask_c = offs_c < width
    # --- load ---
    x = tl.load(x_ptr + start + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + start + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    # --- compute (fp32) ---
    total = x + y
    centred = tl.where(mask_c, total - tl.sum(total, axis=0) / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / width + eps)
    out = centred * scale * weight + bias
    # --- store ---
    tl.store(out_ptr + start + offs_c, out.to(out_ptr.dtype.element_ty), mask=mask_c)


WARPS = ((1024, 2), (4096, 4), (8192, 8), (1 << 30, 16))
"""(up to so wide, warps)."""
