"""Makes room in a prompt for the rows of its images: one placeholder token becomes as many as the image has rows.

Called by `frontend.prompts` between tokenizing and the checks of length. Must not know where tokens or pixels came from.
"""

from collections.abc import Sequence
from typing import NamedTuple

from services.generator.core.images import PromptImage
from services.generator.images.recipe import PreparedImage


class ImagePrompt(NamedTuple):
    """A prompt with its images in place; see `core.request.Request`."""

    token_ids: list[int]
    images: tuple[PromptImage, ...] = ()

    @property
    def num_rows(self) -> int:
        """Tokens of the prompt that stand for images."""
        return sum(image.num_rows for image in self.images)


def expand(token_ids: Sequence[int], images: Sequence[PreparedImage], image_token_id: int) -> ImagePrompt:
    """The prompt with room for every row.

    Semantics: the i-th placeholder belongs to images[i]:

        a ▢ b ▢    and images of 3 rows and 2    →    a ▢ ▢ ▢ b ▢ ▢    at positions 1 and 5

    Args:
        token_ids: with exactly one placeholder per image.
    """
    expanded: list[int] = []
    placed: list[PromptImage] = []
    done = 0
    for image in images:
        place = token_ids.index(image_token_id, done)
        expanded += token_ids[done:place]
        placed.append(PromptImage(len(expanded), image.grid, image.digest, image.pixels))
        expanded += [image_token_id] * placed[-1].num_rows
        done = place + 1
    return ImagePrompt([*expanded, *token_ids[done:]], tuple(placed))
