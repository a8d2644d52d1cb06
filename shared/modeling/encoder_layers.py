"""What the layers of encoders have in common: norm and activations.

Used by the modules of the encoder families and by heads. Layers get everything as arguments and keep nothing of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class LayerNorm:
    """Normalisation over the last axis; `bias` is None where the family has none."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def of_sum(self, x: Tensor, y: Tensor) -> Tensor:
        """Norm of `x` + `y`, contiguous of one shape; `x` may be changed."""
        if not x.is_cuda or self.bias is None:
            return self(x.add_(y))
        from shared.modeling.kernels.add_layer_norm import add_layer_norm  # brings in triton, which a CPU does without

        add_layer_norm(x, x, y, self.weight, self.bias, self.eps)
        return x
