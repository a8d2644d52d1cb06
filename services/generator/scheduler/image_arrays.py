"""What a plan says of images, as arrays: which rows of the encoder's cache it reads, and where its tokens stand on three axes.

Used by the PlanBuilder. Decides nothing; must not import torch.
"""

from collections.abc import Sequence as Rows

import numpy as np

from services.generator.core.plan import NUM_AXES, ImageEncode, ImageWork, IntArray
from services.generator.core.sequence import Sequence
from services.generator.scheduler.chunk import Chunk


def image_work(chunks: Rows[Chunk], offset: int, encodes: list[ImageEncode]) -> ImageWork | None:
    """Which tokens take their embeddings from rows of the encoder's cache.

        image:  | rows … | rows that the chunk reads | rows … |
        chunk:           |first                  last|

    Args:
        offset: tokens of the step before the first chunk.
    Returns:
        None where the chunks have no token of an image.
    """
    tokens, rows = [], []
    for chunk in chunks:
        for image, cached in chunk.sequence.image_leases:
            first, last = max(chunk.start, image.position), min(chunk.end, image.end)
            if first < last:
                tokens.append(np.arange(first, last, dtype=np.int32) + (offset - chunk.start))
                rows.append(cached.rows[first - image.position : last - image.position])
        offset += chunk.length
    return ImageWork(encodes, np.concatenate(tokens), np.concatenate(rows)) if tokens else None


def step_rope_positions(decodes: Rows[Sequence], starts: Rows[int], chunks: Rows[Chunk]) -> IntArray | None:
    """Where the tokens of a step stand on three axes.

    Args:
        decodes: rows with one token each, which come first.
        starts: positions of these tokens.
    Returns:
        [3, T] int32; None where no sequence has images, so that all axes say what the positions say.
    """
    everyone = [*decodes, *(chunk.sequence for chunk in chunks)]
    if all(sequence.rope_positions is None for sequence in everyone):
        return None
    lagging = np.array(starts, np.int32) + np.array([sequence.rope_delta for sequence in decodes], np.int32)
    parts: list[IntArray] = [_on_all_axes(lagging), *(_chunk_positions(chunk) for chunk in chunks)]
    return np.concatenate(parts, axis=1)


def _chunk_positions(chunk: Chunk) -> IntArray:
    """[3, length]: of a chunk of prompt, or of tokens that were generated before a preemption, or of both."""
    sequence = chunk.sequence
    if sequence.rope_positions is None:
        return _on_all_axes(np.arange(chunk.start, chunk.end, dtype=np.int32))
    first_output = max(chunk.start, sequence.num_prompt_tokens)
    output = np.arange(first_output, chunk.end, dtype=np.int32) + np.int32(sequence.rope_delta)
    return np.concatenate([sequence.rope_positions[:, chunk.start : chunk.end], _on_all_axes(output)], axis=1)


def _on_all_axes(positions: IntArray) -> IntArray:
    return np.broadcast_to(positions, (NUM_AXES, len(positions)))
