"""From the URLs of a request's image parts to pixels as the model wants them, off the event loop, within the operator's limits.

Called by `frontend.prompts`. Joins the steps and names the part where one fails; of a prompt it knows placeholders only.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.generator.images.data_uri import read_data_uri
from services.generator.images.decode import decode
from services.generator.images.prepared_cache import PreparedCache, key_of
from services.generator.images.recipe import ImageRecipe, PreparedImage
from shared.errors import ImageInvalidError, InvalidRequestError, OverloadedError

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


MAX_WAITING_BYTES = 512 * 2**20
"""Of the URLs of all requests whose images are being prepared or wait for it; those who come later are told to come back."""


class ImagePreparer:
    """Prepares images for one model.

    Args:
        recipe: of the model.
        cache: of this recipe and these limits alone.
    """

    def __init__(self, recipe: ImageRecipe, limits: IntakeLimits, cache: PreparedCache) -> None:
        self.image_token_id = recipe.image_token_id
        self._recipe = recipe
        self._limits = limits
        self._cache = cache
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="image")
        self._num_waiting_bytes = 0

    def check_placeholders(self, token_ids: Sequence[int], param: str, num_images: int) -> None:
        """Raise InvalidRequestError unless a prompt has one placeholder for each image, however they came there."""
        num_found = token_ids.count(self.image_token_id)
        if num_found != num_images:
            raise InvalidRequestError(
                f"{param}: has the placeholder of an image, token {self.image_token_id}, {num_found} times for "
                f"{num_images} images",
                param=param,
            )

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
            ImageInvalidError: the first that cannot be read, or is beyond the limits.
            OverloadedError: too much waits already.
        """
        num_bytes = sum(map(len, urls.values()))
        if self._num_waiting_bytes and self._num_waiting_bytes + num_bytes > MAX_WAITING_BYTES:
            raise OverloadedError("too many images wait to be read", retry_after_s=1)
        loop = asyncio.get_running_loop()
        self._num_waiting_bytes += num_bytes
        try:
            return [await loop.run_in_executor(self._pool, self._prepare, part, url) for part, url in urls.items()]
        finally:
            self._num_waiting_bytes -= num_bytes

    def _prepare(self, part: str, url: str) -> PreparedImage:
        """What a file says of itself is checked each time; a file that is known is not decoded again."""
        try:
            file = read_data_uri(url, self._limits.max_bytes)
            key = key_of(file.data)
            known = self._cache.get(key)
            if known is not None:
                return known
            image = decode(file, self._limits.max_pixels)
        except ValueError as error:
            raise ImageInvalidError(f"{part}: {error}", param=part) from None
        prepared = self._recipe.prepare(image)
        self._cache.put(key, prepared)
        return prepared
