"""Product of few rows with a weight, in plain torch. The oracle of the Triton kernels of `skinny_linear`, whose parts it sums."""

from torch import Tensor
from torch.nn import functional

from services.generator.kernels.reference.silu_mul import silu_mul


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b in fp32: [T, K], [N, K] and [N] to [T, N]."""
    return functional.linear(x.float(), weight.float(), None if bias is None else bias.float())


def skinny_silu_mul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same with gate and up, and their activation: [T, K], [2 F, K] and [2 F] to [T, F], in fp32."""
    return silu_mul(skinny_linear(x, weight, bias))
