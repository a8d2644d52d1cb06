"""From the 8-bit pixels of prepared images to the floats that a tower sees.

Called by the encoders for images of one size.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.generator.core.images import Pixels
from services.generator.images.preprocessor_config import Scaling
from shared.modeling.transfers import to_device


class PixelScale:
    """Looks each value up, so that every one is rounded as the reference's arithmetic on the host rounds it."""

    def __init__(self, scaling: Scaling, device: torch.device) -> None:
        self._table = torch.from_numpy(scaling.table()).to(device)  # [3, 256]
        self._channels = torch.arange(3, device=device)

    def __call__(self, images: Sequence[Pixels]) -> Tensor:
        """[N, height, width, 3] float32 of N images of the same size."""
        first = images[0]
        stacked = np.empty((len(images), first.height, first.width, 3), np.uint8)
        for index, pixels in enumerate(images):
            stacked[index] = np.frombuffer(pixels.data, np.uint8).reshape(stacked.shape[1:])
        return self._table[self._channels, to_device(stacked, self._table.device).long()]
