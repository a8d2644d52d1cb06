"""Which rows of a step use which adapter slot: the rows sorted into segments, and the segments cut into chunks.

Made once per step by whoever makes the step's inputs, from the slot of every row, and read by the LoRA kernels of all layers. Holds
no tensor of an adapter; must not import torch or triton. Make it anew whenever a row or a slot changed hands.
Source: Punica, arXiv:2310.18547, §4 (segments); chunks of one size, so that one popular adapter does not unbalance the grid.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from services.generator.core.slots import NO_ADAPTER
from services.generator.kernels.chunks import IntArray, cut_chunks, max_chunks

ChunkTable = tuple[tuple[int, int], ...]
"""(up to so many rows an adapter, chunk size)."""

CHUNK_SIZES: tuple[tuple[int, ChunkTable], ...] = (
    (32, ((7, 1), (127, 16), (1 << 30, 64))),
    (1 << 30, ((3, 1), (127, 16), (1 << 30, 64))),
)
"""(up to so many ranks of the bank, table). Of high ranks tiles pay with fewer rows, since a program per row reads B once for each.
The sizes of all tables are the same. H200, 2026-12-01."""

ArrayT = TypeVar("ArrayT")


def chunk_sizes() -> list[int]:
    """All there are, in rising order."""
    return [size for _, size in CHUNK_SIZES[-1][1]]


def chunk_size_for(num_rows: int, num_adapters: int, max_rank: int) -> int:
    """The chunk size that is fastest for a step; 1 means a program per row.

    Args:
        num_rows: rows of the step, or of the graph.
        num_adapters: different adapters among them, or as many as the graph is made for: more are right, but slower.
        max_rank: of the bank.
    """
    rows_each = num_rows // max(1, num_adapters)
    return next(size for limit, size in _chunk_table(max_rank) if rows_each <= limit)


def max_adapters_for(num_rows: int, chunk_size: int, max_rank: int) -> int:
    """The most different adapters for which `chunk_size_for` answers this chunk size."""
    index = chunk_sizes().index(chunk_size)
    if index == 0:
        return num_rows
    limit, _ = _chunk_table(max_rank)[index - 1]
    return num_rows // (limit + 1)


def _chunk_table(max_rank: int) -> ChunkTable:
    return next(table for limit, table in CHUNK_SIZES if max_rank <= limit)


@dataclass(frozen=True, slots=True)
class LoraSegments(Generic[ArrayT]):
    """The metadata as NumPy arrays or as device tensors; all int32.

    Attributes:
        row_slots: [T] slot of each row, NO_ADAPTER for base rows and for the padding rows of a graph.
        token_order: [T] rows sorted by slot; base rows come first.
        chunk_slots: [chunks] slot of each chunk, NO_ADAPTER for chunks of base rows and where the chunk is not in use.
        chunk_starts: [chunks] where in `token_order` the chunk begins.
        chunk_lens: [chunks] rows of the chunk, 0 where it is not in use.
    """

    row_slots: ArrayT
    token_order: ArrayT
    chunk_slots: ArrayT
    chunk_starts: ArrayT
    chunk_lens: ArrayT

    @property
    def arrays(self) -> tuple[ArrayT, ArrayT, ArrayT, ArrayT, ArrayT]:
        """In the order in which the kernels take them."""
        return self.row_slots, self.token_order, self.chunk_slots, self.chunk_starts, self.chunk_lens


def single_rows(row_slots: ArrayT) -> LoraSegments[ArrayT]:
    """For chunks of size 1, which a program per row computes: it looks at `row_slots` only, and the rest stands for no chunk.

    Args:
        row_slots: [T] int32, of rows that are known on the device alone.
    """
    none = row_slots[:0]  # type: ignore[index]
    return LoraSegments(row_slots, row_slots, none, none, none)


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Where each array lies in one packed buffer, so that a step copies once and a graph replays on fixed addresses.

    Attributes:
        num_rows: rows of the step, padding included (T).
        max_adapters: the most different adapters of a step.
        chunk_size: the most rows of a chunk.
    """

    num_rows: int
    max_adapters: int
    chunk_size: int

    @property
    def num_chunks(self) -> int:
        """Chunks that there is room for, whatever the mix of adapters."""
        return max_chunks(self.num_rows, self.chunk_size, self.max_adapters + 1)

    @property
    def size(self) -> int:
        """Elements of the packed buffer."""
        return 2 * self.num_rows + 3 * self.num_chunks

    def pack(self, row_slots: IntArray) -> IntArray:
        """The metadata of a step as one [size] int32 array.

        Args:
            row_slots: [T] int32, NO_ADAPTER or a slot.
        """
        packed = np.zeros(self.size, np.int32)
        views = self.split(packed)
        views.chunk_slots[:] = NO_ADAPTER
        views.row_slots[:] = row_slots
        views.token_order[:] = np.argsort(row_slots, kind="stable")
        counts = np.bincount(row_slots + 1).astype(np.int32)  # base rows, then each slot
        first_rows = np.cumsum(counts, dtype=np.int32) - counts
        runs, offsets, lens = cut_chunks(counts, self.chunk_size)
        views.chunk_slots[: len(runs)] = runs - 1
        views.chunk_starts[: len(runs)] = first_rows[runs] + offsets
        views.chunk_lens[: len(runs)] = lens
        return packed

    def split(self, packed: ArrayT) -> LoraSegments[ArrayT]:
        """The parts of a packed buffer, as views of it: an array's or a tensor's."""
        t, c = self.num_rows, self.num_chunks
        borders = (0, t, 2 * t, 2 * t + c, 2 * t + 2 * c, 2 * t + 3 * c)
        parts = [packed[start:end] for start, end in pairwise(borders)]  # type: ignore[index]
        return LoraSegments(*parts)
