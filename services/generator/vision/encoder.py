"""The vision encoder: from the pixels of some images to rows of the decoder's width.

Made at start by `vision.loader`, called by the runner between the copies of a step and its forward pass.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from services.generator.core.images import PromptImage


class VisionEncoder(Protocol):
    """A tower of transformer blocks and what leads from its width to the decoder's.

    Attributes:
        num_bytes: memory of its weights.
    """

    num_bytes: int

    def __call__(self, images: Sequence[PromptImage]) -> list[Tensor]:
        """The rows of each image, [num_rows, C] in the decoder's dtype: each the same whatever else is in `images`."""
        ...
