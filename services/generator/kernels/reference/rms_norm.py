"""Root-mean-square norm with the residual sum before it, in plain torch.

Semantics:  residual += x;  out = residual / sqrt(mean(residual²) + eps) · weight, the norm in fp32.
Source:     arXiv:1910.07467. The oracle of the Triton kernel `rms_norm`.
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The norm, and the sum that it is of, which is rounded to `x`'s dtype first.

    Args:
        x: [T, C].
        weight: [C].
        residual: [T, C], or None for zeros.
    Returns:
        The norm and the sum, [T, C] each in `x`'s dtype.
    """
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype), total
