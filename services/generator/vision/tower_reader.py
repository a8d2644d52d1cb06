"""Reads the modules of a vision tower out of a folder: each tensor checked, fused where that is one product, counted.

Used by the loaders of the towers. Knows no tower.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shared.modeling.encoder_layers import LayerNorm
from shared.modeling.linear import LinearLayer, make_linear
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError


class TowerReader:
    """The tensors of one part of a model.

    Args:
        prefix: what stands before all their names.

    Attributes:
        num_bytes: memory of what has been read.
    """

    def __init__(self, files: WeightFiles, prefix: str, dtype: torch.dtype, device: torch.device) -> None:
        self.num_bytes = 0
        self._files = files
        self._prefix = prefix
        self._dtype = dtype
        self._device = device
        self._read: set[str] = set()

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, without the prefix.

        Raises:
            ModelFolderError: it is missing, has another shape or is quantised.
        """
        full_name = self._prefix + name
        self._files.check({full_name: shape})
        tensor = self._files.read(full_name, shape, self._dtype).to(self._device)
        self.num_bytes += tensor.nbytes
        self._read.add(full_name)
        return tensor

    def linear(self, names: Sequence[str], num_in: int, num_out: int, *, has_bias: bool = True) -> LinearLayer:
        """The projections `names`, each from `num_in` to `num_out` features, as one whose outputs stand side by side."""
        weight = torch.cat([self.tensor(f"{name}.weight", num_out, num_in) for name in names])
        bias = torch.cat([self.tensor(f"{name}.bias", num_out) for name in names]) if has_bias else None
        return make_linear(weight, bias)

    def patch_projection(self, name: str, patch_size: int, num_out: int, *, has_bias: bool) -> LinearLayer:
        """A convolution whose stride is its size, as a product over the patch's values, channel by channel."""
        weight = self.tensor(f"{name}.weight", num_out, 3, patch_size, patch_size).flatten(1)
        return make_linear(weight, self.tensor(f"{name}.bias", num_out) if has_bias else None)

    def norm(self, name: str, size: int, eps: float) -> LayerNorm:
        """Weight and bias of a norm over `size` features."""
        return LayerNorm(self.tensor(f"{name}.weight", size), self.tensor(f"{name}.bias", size), eps)

    def refuse_unread(self, is_unused: Callable[[str], bool] = lambda name: False) -> None:
        """Call last.

        Args:
            is_unused: whether a tensor of this name, without the prefix, is known and plays no part.
        Raises:
            ModelFolderError: the folder has tensors of this part that nobody asked for.
        """
        left = (name for name in self._files.names() - self._read if name.startswith(self._prefix))
        unknown = [name for name in left if not is_unused(name.removeprefix(self._prefix))]
        if unknown:
            raise ModelFolderError(f"{len(unknown)} tensors are not part of the vision tower, such as {min(unknown)}")


def prefix_in(files: WeightFiles, prefixes: Sequence[str], name: str) -> str:
    """Whichever of `prefixes` stands before `name` in this folder; the first where none does, for errors to speak of."""
    return next((prefix for prefix in prefixes if prefix + name in files), prefixes[0])
