"""Cuts an image into the patches of a Qwen tower and scales its values.

Called by `qwen_tower` for every image it sees.
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
    table = torch.from_numpy(preprocessing.scaling.table()).to(device, non_blocking=True)  # [3, 256]
    blocks = table.gather(1, flat.view(-1, 3).t().long()).view(
        3, pixels.height // (merge * patch), merge, patch, pixels.width // (merge * patch), merge, patch
    )
    frame = blocks.permute(1, 4, 2, 5, 0, 3, 6).flatten(0, 3)  # [N, 3, P, P]
    return frame[:, :, None].expand(-1, -1, preprocessing.temporal_patch_size, -1, -1).flatten(1)
