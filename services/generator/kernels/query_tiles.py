"""Tiles of queries for attention over rows of any length: which row a tile belongs to, and where in it the tile begins.

Made once per step by whoever makes the step's inputs, read by `paged_attention_prefill` of all layers. NumPy on the host; must not
import torch or triton.
"""

import numpy as np

from services.generator.kernels.chunks import IntArray, cut_chunks, max_chunks

NO_ROW = -1
"""Row of a tile that is not in use."""

TILE_QUERIES = 16
"""Queries of a tile; with the query heads of one key head that makes 64 rows of a product for groups of 4. H200, 2026-11-30."""


def max_query_tiles(num_tokens: int, num_rows: int) -> int:
    """Tiles that there is room for, whatever the lengths of the rows."""
    return max_chunks(num_tokens, TILE_QUERIES, num_rows)


def query_tiles(context_lens: IntArray, query_lens: IntArray, num_tiles: int) -> IntArray:
    """Row and first query, counted within the row, of each tile; those with the most keys first, since the last should end soon.

    Args:
        context_lens: [S] int32, keys of each row, those of this step included.
        query_lens: [S] int32, tokens of each row in this step; 0 is allowed.
        num_tiles: length of the result, at least the tiles in use; see `max_query_tiles`.
    Returns:
        [2, num_tiles] int32: rows, NO_ROW where the tile is not in use; first queries.
    """
    rows, offsets, _ = cut_chunks(query_lens, TILE_QUERIES)
    tiles = np.zeros((2, num_tiles), np.int32)
    tiles[0] = NO_ROW
    num_before = context_lens[rows] - query_lens[rows] + offsets
    order = np.argsort(-num_before, kind="stable")
    tiles[:, : len(rows)] = rows[order], offsets[order]
    return tiles
