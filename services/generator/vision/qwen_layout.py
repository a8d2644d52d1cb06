"""In which order the patches of some images go through a Qwen tower, and which stretches of that order attend to each other.

Called by `qwen_tower` once a call. Integers only: numpy, no torch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from services.generator.core.images import Grid


@dataclass(frozen=True, slots=True)
class Run:
    """`count` segments of `length` patches, one behind the other from `start` on; a patch sees those of its segment."""

    start: int
    count: int
    length: int

    @property
    def end(self) -> int:
        """Behind its last patch."""
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True)
class Layout:
    """N patches of B blocks.

    Images stay in their order, one behind the other. Within an image the windows of equal size are neighbours, so that each
    size is one run and attention needs neither padding nor a mask.

    Attributes:
        order: [B] int64, the block (counted row by row through all images) that is at each place.
        coordinates: [N, 2] int64, row and column of each patch in its image, in patches.
        windows: where patches see their window.
        images: where they see their image.
    """

    order: np.ndarray
    coordinates: np.ndarray
    windows: tuple[Run, ...]
    images: tuple[Run, ...]


def lay_out(grids: Sequence[Grid], merge_size: int, window: int | None) -> Layout:
    """The layout of still images.

    Args:
        grids: in blocks, each of which becomes one row.
        merge_size: side of a block in patches.
        window: side of a window in blocks, cut from the top left; None: windows are whole images.
    """
    orders, coordinates = [], []
    window_lengths: list[int] = []
    image_lengths: list[int] = []
    num_blocks = 0
    block_patches = merge_size * merge_size
    inside = np.indices((merge_size, merge_size)).reshape(2, -1).T  # [merge_size², 2]
    for _, height, width in grids:
        order, sizes = _by_window(height, width, window)
        corners = np.stack(np.divmod(order, width), axis=-1) * merge_size  # [h · w, 2]
        coordinates.append((corners[:, None] + inside).reshape(-1, 2))
        orders.append(order + num_blocks)
        window_lengths.extend(size * block_patches for size in sizes)
        image_lengths.append(len(order) * block_patches)
        num_blocks += len(order)
    return Layout(np.concatenate(orders), np.concatenate(coordinates), _runs(window_lengths), _runs(image_lengths))


def _by_window(height: int, width: int, window: int | None) -> tuple[np.ndarray, list[int]]:
    """The blocks of an image window by window, large windows first, and the windows' sizes in blocks."""
    if window is None:
        return np.arange(height * width), [height * width]
    y, x = np.indices((height, width)).reshape(2, -1)
    window_ids = y // window * -(-width // window) + x // window
    sizes = np.bincount(window_ids)
    return np.lexsort((window_ids, -sizes[window_ids])), sorted(sizes.tolist(), reverse=True)


def _runs(lengths: Iterable[int]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for length, group in groupby(lengths):
        runs.append(Run(runs[-1].end if runs else 0, len(list(group)), length))
    return tuple(runs)
