"""What a model does to an image before its vision encoder sees it: sizes, resizing, cutting; values stay 8-bit.

Made at start by `images.recipes`, used by the front end for every image; the engine's encoder reads the same numbers from the
folder. Must not import torch.
"""

from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from services.generator.core.images import Pixels


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image that is ready for the encoder; see `PromptImage`, which also has its place."""

    grid: tuple[int, int, int]
    digest: bytes
    pixels: Pixels


class ImageRecipe(Protocol):
    """The preprocessing of one model.

    Attributes:
        image_token_id: the placeholder, of which the chat template writes one for an image.
    """

    image_token_id: int

    def grid_for(self, height: int, width: int) -> tuple[int, int, int]:
        """Rows (t, h, w) that an image of this size takes; sizes are those that `images.decode` lets through."""
        ...

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Resize and cut an RGB image of such a size."""
        ...
