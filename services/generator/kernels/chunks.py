"""Runs of rows cut into chunks of one size, so that no long run makes one program of a kernel slow.

Called by the makers of a step's metadata: LoRA segments, query tiles. NumPy on the host, a fixed number of operations whatever the
number of runs; must not import torch or triton.
"""

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


def max_chunks(num_rows: int, chunk_size: int, max_runs: int) -> int:
    """The most chunks that `num_rows` rows in at most `max_runs` runs can give.

    A run of n rows gives 1 + (n - 1) // chunk_size, and most where every run but one has a single row.
    """
    runs = min(num_rows, max_runs)
    return runs + (num_rows - runs) // chunk_size


def cut_chunks(lengths: IntArray, chunk_size: int) -> tuple[IntArray, IntArray, IntArray]:
    """Cut each run; the last chunk of a run may be shorter.

    run:     | 0 . . . . . . . . | 1 . . . | 2 . . . . . |     chunk_size 4
    chunks:  | 0 . . . | 0 . . . | 0 | 1 . . . | 2 . . . | 2 . |

    Args:
        lengths: [N] int32, rows of each run; 0 is allowed and gives no chunk.
    Returns:
        Three of [chunks] int32: the run of each chunk, its first row counted within the run, its number of rows.
    """
    num_chunks = -(-lengths // chunk_size)
    runs = np.repeat(np.arange(len(lengths), dtype=np.int32), num_chunks)
    first_chunks = np.cumsum(num_chunks, dtype=np.int32) - num_chunks
    offsets = (np.arange(len(runs), dtype=np.int32) - first_chunks[runs]) * np.int32(chunk_size)
    return runs, offsets, np.minimum(lengths[runs] - offsets, chunk_size).astype(np.int32)
