"""Where the rows of an image are while a sequence may read them.

Written by `scheduler.encoder_cache_manager` only, held by the sequences. Must not import torch.
"""

from dataclasses import dataclass
from typing import NamedTuple

from services.generator.core.images import PromptImage
from services.generator.core.plan import IntArray


@dataclass(slots=True, eq=False)
class CachedImage:
    """The place of an image in the encoder's cache, shared by all sequences that show it.

    Attributes:
        rows: [num_rows] rows of the cache that are its own, in order.
        num_leases: images of running sequences that are read from here.
        is_encoded: whether the rows are there, or will be by the time that a step reads them.
    """

    digest: bytes
    rows: IntArray
    num_leases: int = 0
    is_encoded: bool = False


class ImageLease(NamedTuple):
    """An image of a prompt, and where its rows stay while the sequence may read them."""

    image: PromptImage
    cached: CachedImage
