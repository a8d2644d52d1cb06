"""The vectors that a model gives: their length, the shorter lengths that it was trained for, and how to shorten one.

Held by `TextPreparer`; the embedder asks for `check` before the model runs and for `cut` after it.
Source: Matryoshka Representation Learning, arXiv:2205.13147.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.errors import InvalidRequestError

Vectors = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class VectorShape:
    """Lengths and norm of a model's vectors.

    Attributes:
        num_dims: of a whole vector.
        shorter_dims: lengths it may be cut to; None for every one.
        is_normalized: vectors have unit length, cut ones too.
    """

    num_dims: int
    shorter_dims: Collection[int] | None
    is_normalized: bool

    def check(self, num_dims: int, *, param: str) -> None:
        """See whether vectors of `num_dims` numbers can be had.

        Raises:
            InvalidRequestError: more than there are, or not a length that the model declares.
        """
        if num_dims > self.num_dims:
            raise InvalidRequestError(
                f"{param} is {num_dims}; the model's vectors have {self.num_dims} numbers", param=param
            )
        if num_dims == self.num_dims or self.shorter_dims is None or num_dims in self.shorter_dims:
            return
        if not self.shorter_dims:
            raise InvalidRequestError(
                f"{param} is {num_dims}, but the model does not declare Matryoshka vectors, "
                f"which alone may be cut; leave it out or send {self.num_dims}",
                param=param,
            )
        lengths = ", ".join(map(str, sorted(self.shorter_dims)))
        raise InvalidRequestError(f"{param} is {num_dims}; the model was trained for {lengths}", param=param)

    def cut(self, vectors: Vectors, num_dims: int) -> Vectors:
        """The first `num_dims` numbers of each row, at unit length again if the whole ones are."""
        shorter = vectors[:, :num_dims]
        if not self.is_normalized:
            return shorter
        norms = np.linalg.norm(shorter, axis=1, keepdims=True)
        cut: Vectors = shorter / np.maximum(norms, np.float32(1e-12))
        return cut
