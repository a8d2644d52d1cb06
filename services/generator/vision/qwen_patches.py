"""Cuts an image into the patches of a Qwen tower and scales its values.

Called by `qwen_tower` for every image it sees. The arithmetic is that of transformers' processor on numpy, value for value.
"""

import numpy as np
import torch
from torch import Tensor

from services.generator.core.images import Pixels
from services.generator.images.qwen_recipe import QwenPreprocessing


def to_patches(pixels: Pixels, preprocessing: QwenPreprocessing, device: torch.device) -> Tensor:
    """Patches, block by block: those of one block are neighbours, row by row.

    Returns:
        [N, 3 · F · P · P] float32, F times the same frame: channel, frame, row, column.
    """
    patch, merge = preprocessing.patch_size, preprocessing.merge_size
    flat = torch.tensor(np.frombuffer(pixels.data, np.uint8)).to(device, non_blocking=True)
    blocks = _scale(flat.view(-1, 3), preprocessing).view(
        pixels.height // (patch * merge), merge, patch, pixels.width // (patch * merge), merge, patch, 3
    )
    frame = blocks.permute(0, 3, 1, 4, 6, 2, 5).flatten(0, 3)  # [N, 3, P, P]
    return frame[:, :, None].expand(-1, -1, preprocessing.temporal_patch_size, -1, -1).flatten(1)


def _scale(values: Tensor, preprocessing: QwenPreprocessing) -> Tensor:
    """[..., 3] uint8 to float32; the reference multiplies in fp64, and rounds before it subtracts."""
    mean, std = (torch.tensor(each, device=values.device) for each in (preprocessing.mean, preprocessing.std))
    return ((values.double() * preprocessing.rescale_factor).float() - mean) / std
