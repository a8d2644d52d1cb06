"""Linear layers for inference: the plain one, and one whose weight is laid out once for the CPU's product.

Used by encoders through `make_linear`, which chooses by device and dtype; `linear_backend` says what it chooses, for the log.
The packed one stands on two operators of torch that its own compiler emits but does not document; where they are missing the
plain one is used. On an AVX2 machine packing takes a tenth off the forward of a full batch and a third off a lone text's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

LinearLayer = Callable[[Tensor], Tensor]
"""[T, in] to [T, out]."""

_PACKED_FOR_ROWS = 512  # a hint for the layout; other numbers of rows are as right and hardly slower


def linear_backend(device: torch.device, dtype: torch.dtype) -> Literal["onednn", "torch"]:
    """Which kind `make_linear` makes for weights there."""
    if device.type != "cpu" or dtype is not torch.float32:
        return "torch"
    has_operators = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    is_built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return "onednn" if has_operators and is_built else "torch"


def make_linear(weight: Tensor, bias: Tensor | None) -> LinearLayer:
    """x Wᵀ + b.

    Args:
        weight: [out, in].
        bias: [out], or None for none.
    """
    if linear_backend(weight.device, weight.dtype) == "torch":
        return PlainLinear(weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)  # noqa: SLF001 - see the module's text
    return PackedLinear(packed, bias)


@dataclass(frozen=True)
class PlainLinear:
    """torch's own."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class PackedLinear:
    """oneDNN's, in fp32 on a CPU; `weight` has oneDNN's own layout."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001 - see the module's text
            x, self.weight, self.bias, "none", [], ""
        )
        return product
