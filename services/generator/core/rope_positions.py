"""Rotary positions on three axes, time, height and width, for prompts with images of models that rotate by them.

Source: Qwen2-VL, arXiv:2409.12191, §2.1 (M-RoPE), with the conventions of transformers' `get_rope_index`. Called once a request;
physical positions (places in the KV cache, causal order) are other numbers and stay as they are. Must not import torch.
"""

from collections.abc import Sequence

import numpy as np

from services.generator.core.images import Grid, PromptImage


def rope_positions(
    num_tokens: int, images: Sequence[PromptImage], temporal_step: float = 1.0
) -> tuple[np.ndarray, int]:
    """Where each token of a prompt stands on each axis, and how far generation then lags behind the count of tokens.

    Semantics: text counts up on all axes at once. The row (i, j, k) of an image that begins at position p has
    (p + floor(i · temporal_step), p + j, p + k), and what follows begins at p + max(h, w): transformers' rule, in which t
    plays no part, so that the positions of a grid much deeper than wide run into those of the text after it.

        grid (1, 2, 3) after two tokens of text, and two behind it:
        time    0 1 | 2 2 2 2 2 2 | 5 6
        height  0 1 | 2 2 2 3 3 3 | 5 6
        width   0 1 | 2 3 4 2 3 4 | 5 6      the next token is at 7 and the tenth: delta -3

    Args:
        num_tokens: T, of the prompt with its placeholders.
        images: by rising position, none beyond the prompt.
        temporal_step: positions from one slice of time to the next. Still images have one slice, for which it says nothing;
            Qwen2.5-VL's video has seconds per slice · tokens_per_second, arXiv:2502.13923, §2.1.2.
    Returns:
        [3, T] int32, and the delta: the token at place n ≥ T has position n + delta on all axes.
    """
    positions = np.empty((3, num_tokens), np.int32)
    place = position = 0
    for image in images:
        num_text = image.position - place
        positions[:, place : image.position] = np.arange(position, position + num_text)
        position += num_text
        positions[:, image.position : image.end] = position + _coordinates(image.grid, temporal_step)
        place, position = image.end, position + max(image.grid[1:])
    positions[:, place:] = np.arange(position, position + num_tokens - place)
    return positions, int(positions.max(initial=-1)) + 1 - num_tokens


def _coordinates(grid: Grid, temporal_step: float) -> np.ndarray:
    """[3, t · h · w]: the indices of each row in its grid, those of time stretched and rounded down."""
    coordinates = np.indices(grid).reshape(3, -1)
    coordinates[0] = coordinates[0] * temporal_step
    return coordinates
