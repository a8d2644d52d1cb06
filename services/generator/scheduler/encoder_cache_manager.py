"""Ledger of the encoder's cache: which of its rows hold which image, which are reused next.

Called by the Scheduler and its parts. Owns row numbers, never a tensor; must not import torch.
Invariant (`check_integrity`): every row is free or belongs to one image; an image is idle exactly when nobody leases it.

An idle image keeps its rows until others need them, least recently used first. The device runs plans in order, so steps in flight
still read what they expect of rows that the next plan fills anew.
"""

from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakValueDictionary

import numpy as np
from msgspec.structs import replace

from services.generator.core.image_lease import CachedImage, ImageLease
from services.generator.core.images import Pixels, PromptImage, rows_by_digest
from services.generator.core.sequence import Sequence
from shared.errors import InternalError


class EncoderCacheManager:
    """Gives rows to the images of sequences and takes them back.

    Attributes:
        num_encoded_images, num_encoded_rows: what went through the encoder.
        num_hits: leases of images that were there already.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._free = list(range(num_rows - 1, -1, -1))
        self._images: dict[bytes, CachedImage] = {}
        self._idle: OrderedDict[bytes, CachedImage] = OrderedDict()
        self._pixels: WeakValueDictionary[bytes, Pixels] = WeakValueDictionary()
        self.num_encoded_images = 0
        self.num_encoded_rows = 0
        self.num_hits = 0

    @property
    def num_used_rows(self) -> int:
        """Rows that hold an image, or soon will."""
        return self._num_rows - len(self._free)

    def can_hold(self, images: Iterable[PromptImage]) -> bool:
        """Whether an empty cache could hold all of these."""
        return sum(rows_by_digest(images).values()) <= self._num_rows

    def adopt(self, images: Iterable[PromptImage]) -> tuple[PromptImage, ...]:
        """The same images, with the pixels of those that some request holds already, so that they are in memory once."""
        return tuple(replace(image, pixels=self._pixels.setdefault(image.digest, image.pixels)) for image in images)

    def has_encoded(self, image: PromptImage) -> bool:
        """Whether a step may read its rows without encoding it."""
        cached = self._images.get(image.digest)
        return cached is not None and cached.is_encoded

    def can_lease(self, images: Iterable[PromptImage]) -> bool:
        """Whether all of these find rows now, together."""
        sizes = rows_by_digest(images)
        missing = sum(size for digest, size in sizes.items() if digest not in self._images)
        idle = sum(len(cached.rows) for digest, cached in self._idle.items() if digest not in sizes)
        return missing <= len(self._free) + idle

    def lease(self, sequence: Sequence) -> None:
        """Keep rows for the images that a sequence has yet to compute, or a part of them; they must fit."""
        images = images_to_compute(sequence)
        for image in images:
            self._idle.pop(image.digest, None)
        for image in images:
            cached = self._images.get(image.digest)
            if cached is None:
                cached = self._images[image.digest] = self._allocate(image)
            else:
                self.num_hits += 1
            cached.num_leases += 1
            sequence.image_leases.append(ImageLease(image, cached))

    def release(self, sequence: Sequence) -> None:
        """The sequence reads no images any more, in no plan that is yet to be made."""
        for _, cached in sequence.image_leases:
            cached.num_leases -= 1
            if cached.num_leases == 0:
                self._idle[cached.digest] = cached
                if not cached.is_encoded:
                    self._evict(cached.digest)
        sequence.image_leases.clear()

    def note_encoded(self, cached: CachedImage) -> None:
        """The plan being made encodes this image."""
        cached.is_encoded = True
        self.num_encoded_images += 1
        self.num_encoded_rows += len(cached.rows)

    def forget_all(self) -> None:
        """Nothing is known of what the rows hold; nothing may be leased."""
        for digest in list(self._idle):
            self._evict(digest)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise InternalError where rows, images and holders disagree; `sequences` are all that run."""
        leases = [lease.cached for sequence in sequences for lease in sequence.image_leases]
        rows = [row for cached in self._images.values() for row in cached.rows.tolist()]
        is_right = all(
            cached.num_leases == leases.count(cached) and (cached.num_leases == 0) == (digest in self._idle)
            for digest, cached in self._images.items()
        )
        if not is_right or not set(leases) <= set(self._images.values()):
            raise InternalError("an image in the encoder's cache is lost or miscounted; this is a bug")
        if sorted([*rows, *self._free]) != list(range(self._num_rows)):
            raise InternalError("a row of the encoder's cache is lost or held twice; this is a bug")

    def _allocate(self, image: PromptImage) -> CachedImage:
        while len(self._free) < image.num_rows:
            if not self._idle:
                raise InternalError("an image was leased without rows to be had; this is a bug")
            self._evict(next(iter(self._idle)))
        rows = [self._free.pop() for _ in range(image.num_rows)]
        return CachedImage(image.digest, np.array(rows, np.int32))

    def _evict(self, digest: bytes) -> None:
        del self._idle[digest]
        self._free.extend(reversed(self._images.pop(digest).rows.tolist()))


def images_to_compute(sequence: Sequence) -> list[PromptImage]:
    """Those of which at least the last row is not computed."""
    return [image for image in sequence.request.images if image.end > sequence.num_computed_tokens]
