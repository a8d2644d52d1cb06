"""A tensor with a sentinel all around and inside it: shows that a kernel writes what it should and nothing else."""

import torch
from torch import Tensor

SENTINEL = 777.0


class Guarded:
    """`tensor` of the wanted shape, filled with the sentinel, between two margins filled with it."""

    MARGIN = 256

    def __init__(self, *shape: int, dtype: torch.dtype, device: str) -> None:
        size = torch.Size(shape).numel()
        self._buffer = torch.full((size + 2 * self.MARGIN,), SENTINEL, dtype=dtype, device=device)
        self.tensor: Tensor = self._buffer[self.MARGIN : self.MARGIN + size].view(shape)

    def assert_untouched(self, where: Tensor) -> None:
        """The margins, and the elements of `tensor` where `where` holds, are bit for bit what they were."""
        assert bool((self._buffer[: self.MARGIN] == SENTINEL).all())
        assert bool((self._buffer[-self.MARGIN :] == SENTINEL).all())
        assert bool((self.tensor[where] == SENTINEL).all())
