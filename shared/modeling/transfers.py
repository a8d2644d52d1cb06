"""Copies between host and device that neither side waits for.

Used by everything that moves arrays of a step or a batch. On a GPU they go through pinned memory of the caching host allocator of
torch, which keeps a block until the copy that reads it is done.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor on `device`, in stream order; on a CPU it shares the array's memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def copy_into(out: Tensor, array: NDArray[Any]) -> None:
    """Fill the first elements of `out` [N] with the array [n]."""
    tensor = torch.from_numpy(array)
    source = tensor if out.device.type == "cpu" else tensor.pin_memory()
    out[: len(array)].copy_(source, non_blocking=True)


class HostCopy:
    """A copy to the host that began when this was made, behind all work launched before it and before all after it."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.to("cpu", non_blocking=True)
        self._done = None
        if tensor.device.type == "cuda":
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def wait(self) -> NDArray[Any]:
        """The values, once they are there."""
        if self._done is not None:
            self._done.synchronize()
        values: NDArray[Any] = self._copy.numpy()
        return values
