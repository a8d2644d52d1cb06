"""Images that were prepared lately, by the content of their files: a chat sends all of its images again with every turn.

Owned by `images.preparer`, whose threads share it. Its key is a digest of the file and nothing that a client says; what else makes
the result, recipe and limits, stays the same for the life of the process. Keeps no refusals, and decodes nothing.
"""

import hashlib
import threading
from collections import OrderedDict

from services.generator.images.recipe import PreparedImage


class PreparedCache:
    """The images used last, of which the pixels take up to `max_bytes`.

    Args:
        max_bytes: 0 keeps none; an image of more is not kept.

    Attributes:
        num_hits: files that were here, since the start.
        num_misses: files that were not.
        num_bytes: of the pixels that are kept now.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._images: OrderedDict[bytes, PreparedImage] = OrderedDict()
        self._lock = threading.Lock()
        self.num_hits = self.num_misses = self.num_bytes = 0

    def get(self, key: bytes) -> PreparedImage | None:
        """The image of the file with this key, which thereby is the one used last."""
        with self._lock:
            image = self._images.get(key)
            if image is None:
                self.num_misses += 1
            else:
                self._images.move_to_end(key)
                self.num_hits += 1
            return image

    def put(self, key: bytes, image: PreparedImage) -> None:
        """Keep the image, in place of those that were not used for longest; two threads may bring the same one."""
        with self._lock:
            if key in self._images or _num_bytes(image) > self._max_bytes:
                return
            self._images[key] = image
            self.num_bytes += _num_bytes(image)
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= _num_bytes(self._images.popitem(last=False)[1])


def key_of(content: bytes) -> bytes:
    """SHA-256 of a file."""
    return hashlib.sha256(content).digest()


def _num_bytes(image: PreparedImage) -> int:
    return len(image.pixels.data)
