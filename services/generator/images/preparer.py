"""From the URLs of a request's image parts to pixels as the model wants them, off the event loop, within the operator's limits.

Called by `frontend.prompts`. Joins the steps and names the part where one fails; knows nothing of text or tokens.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.generator.images.data_uri import read_data_uri
from services.generator.images.decode import decode
from services.generator.images.recipe import ImageRecipe, PreparedImage
from shared.errors import ImageInvalidError

NUM_THREADS = 2
"""Images that are decoded at once, each of which is in memory whole meanwhile."""


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """What is taken from a client.

    Attributes:
        max_images: in one prompt.
        max_bytes: of one file.
        max_pixels: width times height of one image, as its header has them.
    """

    max_images: int
    max_bytes: int
    max_pixels: int


class ImagePreparer:
    """Prepares images for one model.

    Args:
        recipe: of the model.
    """

    def __init__(self, recipe: ImageRecipe, limits: IntakeLimits) -> None:
        self.image_token_id = recipe.image_token_id
        self._recipe = recipe
        self._limits = limits
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="image")

    def check_count(self, num_images: int) -> None:
        """Raise ImageInvalidError where one prompt has more images than the operator allows."""
        if num_images > self._limits.max_images:
            raise ImageInvalidError(
                f"messages: {num_images} images; at most {self._limits.max_images} are taken in one prompt "
                "(--limit-images-per-prompt)",
                param="messages",
            )

    async def prepare(self, urls: Mapping[str, str]) -> list[PreparedImage]:
        """The images in order, one after the other, so that requests take turns; cancelling leaves the rest undone.

        Args:
            urls: of each, by the name of the part that has it.
        Raises:
            ImageInvalidError: the first that cannot be read, or that the model does not take.
        """
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._pool, self._prepare, part, url) for part, url in urls.items()]

    def _prepare(self, part: str, url: str) -> PreparedImage:
        try:
            image = decode(read_data_uri(url, self._limits.max_bytes), self._limits.max_pixels)
            self._recipe.grid_for(image.height, image.width)
        except ValueError as error:
            raise ImageInvalidError(f"{part}: {error}", param=part) from None
        return self._recipe.prepare(image)
