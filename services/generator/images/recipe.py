"""What a model does to an image before its vision encoder sees it: sizes, resizing, cutting; values stay 8-bit.

Made at start by `images.recipes`, used by the front end for every image; the engine's encoder reads the same numbers from the
folder. Must not import torch.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from services.generator.core.images import Grid, Pixels


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image that is ready for the encoder; see `PromptImage`, which also has its place."""

    grid: Grid
    digest: bytes
    pixels: Pixels


def prepared(image: Image.Image, grid: Grid, preprocessing: object) -> PreparedImage:
    """An RGB image as it has become.

    Args:
        preprocessing: what made it so, whose `repr` goes into the digest.
    """
    pixels = Pixels(image.height, image.width, image.tobytes())
    digest = hashlib.sha256(f"{preprocessing!r} {pixels.height}x{pixels.width}:".encode())
    digest.update(pixels.data)
    return PreparedImage(grid, digest.digest(), pixels)


class ImageRecipe(Protocol):
    """The preprocessing of one model.

    Attributes:
        image_token_id: the placeholder, of which the chat template writes one for an image.
    """

    image_token_id: int

    def grid_for(self, height: int, width: int) -> Grid:
        """Rows (t, h, w) that an image of this size takes; sizes are those that `images.decode` lets through."""
        ...

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Resize and cut an RGB image of such a size."""
        ...
