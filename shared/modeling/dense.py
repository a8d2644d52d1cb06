"""The dense layers that some folders put behind pooling: a projection and an activation over each vector.

Made by `TextEncoder`'s loader from the modules' own weight files; computed in fp32, like pooling.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.vector_modules import DenseActivation, DenseModule
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError

VectorStep = Callable[[Tensor], Tensor]
"""[S, in] to [S, out], float32."""

_ACTIVATIONS: Mapping[DenseActivation, VectorStep] = {
    "tanh": torch.tanh,
    "identity": lambda x: x,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}


def load_dense(modules: Sequence[DenseModule], num_in: int, device: torch.device) -> list[VectorStep]:
    """The layers of `modules`, for vectors of `num_in` numbers.

    Raises:
        ModelFolderError: the weights are missing or misshaped, or the layers do not fit together.
    """
    steps = []
    for module in modules:
        if module.num_in != num_in:
            raise ModelFolderError(f"{module.folder.name} takes {module.num_in} numbers, but gets {num_in}")
        steps.append(_load(module, device))
        num_in = module.num_out
    return steps


def _load(module: DenseModule, device: torch.device) -> VectorStep:
    shape = (module.num_out, module.num_in)
    with WeightFiles(module.folder) as files:
        weight = files.read("linear.weight", shape, torch.float32).to(device)
        bias = files.read("linear.bias", shape[:1], torch.float32).to(device) if module.has_bias else None
    activation = _ACTIVATIONS[module.activation]
    return lambda vectors: activation(functional.linear(vectors, weight, bias))
