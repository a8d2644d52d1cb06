"""The images of a prompt as they cross from the API process to the engine: pixels after preprocessing, and where they belong.

Made by the front end (`frontend` and `images`), read by scheduler and runner. Must not import torch.
"""

import msgspec


class Pixels(msgspec.Struct, frozen=True, weakref=True):
    """What the vision encoder sees, before its values are scaled: uint8 [height, width, 3], row by row, RGB.

    Attributes:
        data: height * width * 3 bytes; crosses the queue as a frame of its own, see `engine.wire`.
    """

    height: int
    width: int
    data: bytes


class PromptImage(msgspec.Struct, frozen=True):
    """One image of a prompt.

        prompt:  | text … | num_rows placeholder tokens, the first at `position` | text … |

    Attributes:
        position: of its first row, counted in tokens of the whole prompt.
        grid: (t, h, w) of its rows, after patches were merged; num_rows is their product.
        digest: SHA-256 of pixels, their size and the recipe that made them; never anything that a client said.
    """

    position: int
    grid: tuple[int, int, int]
    digest: bytes
    pixels: Pixels

    @property
    def num_rows(self) -> int:
        """Positions of the prompt that it takes."""
        t, h, w = self.grid
        return t * h * w

    @property
    def end(self) -> int:
        """Position after its last row."""
        return self.position + self.num_rows
