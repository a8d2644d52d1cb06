"""What images mean for sequences: which fit their prompts, who waits for rows, where a chunk is cut, what a step encodes.

Used by the Scheduler, and by the PlanBuilder for what a step reads. Decides; the ledger of the cache counts. Must not import torch.
"""

from collections.abc import Iterable

import numpy as np

from services.generator.core.images import PromptImage
from services.generator.core.plan import ImageEncode
from services.generator.core.request import Request
from services.generator.core.rope_positions import rope_positions
from services.generator.core.sequence import Sequence
from services.generator.core.specs import ImageLimits
from services.generator.scheduler.encoder_cache_manager import EncoderCacheManager, images_to_compute


class ImageAdmission:
    """Sequences and steps as images see them.

    Args:
        limits: None where the model sees no images.

    Attributes:
        has_axes: see `ImageLimits`.
    """

    def __init__(self, limits: ImageLimits | None, cache: EncoderCacheManager) -> None:
        self._limits = limits
        self.has_axes = limits is not None and limits.has_axes
        self._cache = cache
        self._num_rows_left = 0
        self._encodes: list[ImageEncode] = []
        self._is_blocked = False

    def accepts(self, request: Request) -> bool:
        """Whether a request's images are what its prompt has placeholders for, and can all be in the cache at once."""
        if self._limits is None:
            return not request.images
        ids = np.array(request.prompt_token_ids, np.int64)
        spans = [np.arange(image.position, image.end) for image in request.images]
        expected = np.concatenate([np.zeros(0, np.int64), *spans])
        return (
            np.array_equal(np.flatnonzero(ids == self._limits.token_id), expected)
            and all(image.num_rows > 0 and image.pixels.is_whole for image in request.images)
            and self._cache.can_hold(request.images)
        )

    def place(self, sequence: Sequence) -> None:
        """A new sequence gets its positions on three axes, where the model has them and its images make them differ."""
        images = sequence.request.images
        if self.has_axes and images:
            sequence.rope_positions, sequence.rope_delta = rope_positions(sequence.num_prompt_tokens, images)

    def begin_step(self) -> None:
        """A new step is put together: nothing is encoded in it so far."""
        self._num_rows_left = 0 if self._limits is None else self._limits.max_encoded_rows
        self._encodes = []
        self._is_blocked = False

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence has images and another is before it that waits for rows; asked before its prefix is sought."""
        return self._is_blocked and len(sequence.request.images) > 0

    def fit_waiting(self, sequence: Sequence, length: int) -> int:
        """How many of its next `length` tokens a waiting sequence may have in this step; 0 where it has to wait on.

        Who waits lets others go first, but none with images (`must_wait`): so rows come together for it, and its turn to be
        encoded comes.
        """
        if not sequence.request.images:
            return length
        images = images_to_compute(sequence)
        if not images:
            return length
        length = self._cut(images, sequence.num_computed_tokens, length) if self._cache.can_lease(images) else 0
        self._is_blocked = length == 0
        return length

    def fit_running(self, sequence: Sequence, length: int) -> int:
        """The same of a running sequence that leases rows; what it needs no more goes back."""
        if sequence.image_leases[-1].image.end <= sequence.num_computed_tokens:
            self._cache.release(sequence)
            return length
        return self._cut((lease.image for lease in sequence.image_leases), sequence.num_computed_tokens, length)

    def encode_for(self, sequence: Sequence, length: int) -> None:
        """The next `length` tokens of a sequence are planned: what they read is in the cache by then."""
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + length
        for image, cached in sequence.image_leases:
            if not cached.is_encoded and image.position < end and start < image.end:
                self._cache.note_encoded(cached)
                self._encodes.append(ImageEncode(image, cached.rows))
                self._num_rows_left -= image.num_rows

    def take_encodes(self) -> list[ImageEncode]:
        """What the step encodes."""
        encodes, self._encodes = self._encodes, []
        return encodes

    def _cut(self, images: Iterable[PromptImage], start: int, length: int) -> int:
        """Tokens before the first image that this step cannot encode any more; one that is too large for any is its first."""
        num_left, is_first, seen = self._num_rows_left, not self._encodes, set()
        for image in images:
            if image.position >= start + length:
                break
            if image.end <= start or image.digest in seen or self._cache.has_encoded(image):
                continue
            if image.num_rows > num_left and not is_first:
                return max(0, image.position - start)
            num_left, is_first = num_left - image.num_rows, False
            seen.add(image.digest)
        return length
