"""The images of a prompt as they cross from the API process to the engine: pixels after preprocessing, and where they belong.

Made by the front end (`frontend` and `images`), read by scheduler and runner. Must not import torch.
"""

import math
from collections.abc import Iterable

import msgspec

Grid = tuple[int, int, int]
"""(t, h, w): rows of an image along time, height and width, after patches were merged; a still image has t = 1."""

NUM_CHANNELS = 3
"""Red, green and blue, in this order, a byte each."""


class Pixels(msgspec.Struct, frozen=True, weakref=True):
    """What the vision encoder sees, before its values are scaled: uint8 [height, width, 3], row by row, RGB.

    Attributes:
        data: height * width * NUM_CHANNELS bytes; crosses the queue as a frame of its own, see `engine.wire`.
    """

    height: int
    width: int
    data: bytes

    @property
    def is_whole(self) -> bool:
        """Whether there are as many bytes as the size says."""
        return len(self.data) == self.height * self.width * NUM_CHANNELS


class PromptImage(msgspec.Struct, frozen=True):
    """One image of a prompt.

        prompt:  | text … | num_rows placeholder tokens, the first at `position` | text … |

    Attributes:
        position: of its first row, counted in tokens of the whole prompt.
        grid: of its rows; num_rows is the product.
        digest: SHA-256 of pixels, their size and the recipe that made them; never anything that a client said.
    """

    position: int
    grid: Grid
    digest: bytes
    pixels: Pixels

    @property
    def num_rows(self) -> int:
        """Positions of the prompt that it takes."""
        return math.prod(self.grid)

    @property
    def end(self) -> int:
        """Position after its last row."""
        return self.position + self.num_rows


def rows_by_digest(images: Iterable[PromptImage]) -> dict[bytes, int]:
    """How many rows each different image needs in the encoder's cache, where the same one is held once."""
    return {image.digest: image.num_rows for image in images}
