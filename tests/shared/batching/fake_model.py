"""A model that answers with what it was given, keeps the promises it is held to, and fails when told to.

Used by the tests of batching and of the HTTP handle. A row is [length, sum, first id], so a wrong row shows.
"""

import threading
from collections.abc import Sequence

import numpy as np

from shared.batching.model_thread import Rows

POISON = 666
"""A batch with this id in it fails."""
DEADLY = 999
"""A batch with this id in it kills the thread."""

HOLLOW = 555
"""The row of a sequence with this id in it is no number."""


def row_of(token_ids: Sequence[int]) -> list[float]:
    return [float(len(token_ids)), float(sum(token_ids)), float(token_ids[0])]


class FakeModel:
    """Records its batches; `gate` can be cleared to hold the thread inside a forward."""

    def __init__(self, max_batch_tokens: int = 64) -> None:
        self.max_batch_tokens = max_batch_tokens
        self.batches: list[list[list[int]]] = []
        self.thread_names: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.is_inside = threading.Event()

    def run(self, batch: Sequence[Sequence[int]]) -> Rows:
        self.thread_names.add(threading.current_thread().name)
        self.batches.append([list(token_ids) for token_ids in batch])
        self.is_inside.set()
        assert self.gate.wait(30)
        if any(DEADLY in token_ids for token_ids in batch):
            raise SystemExit
        if any(POISON in token_ids for token_ids in batch):
            raise RuntimeError("poisoned")
        rows = np.array([row_of(token_ids) for token_ids in batch], np.float32)
        rows[[HOLLOW in token_ids for token_ids in batch], 1] = np.nan
        return rows
