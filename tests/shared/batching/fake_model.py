"""A model that answers with what it was given, keeps the promises it is held to, and fails when told to.

Used by the tests of batching and of the HTTP handle. A row is [length, sum, first id], so a wrong row shows.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.batching.model_thread import ForwardSpec, Rows

POISON = 666
"""A batch with this id in it fails."""
DEADLY = 999
"""A batch with this id in it kills the thread."""

FORWARD = ForwardSpec(64)
HOLLOW = 555
"""The row of a sequence with this id in it is no number."""


def row_of(token_ids: Sequence[int]) -> list[float]:
    return [float(len(token_ids)), float(sum(token_ids)), float(token_ids[0])]


class FakeModel:
    """Records what it launches; `gate` can be cleared to hold the thread inside a forward."""

    def __init__(self, forward: ForwardSpec = FORWARD) -> None:
        self.forward = forward
        self.batches: list[list[list[int]]] = []
        self.thread_names: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.is_inside = threading.Event()

    def launch(self, batch: Sequence[Sequence[int]]) -> "FakeForward":
        self.thread_names.add(threading.current_thread().name)
        self.batches.append([list(token_ids) for token_ids in batch])
        self.is_inside.set()
        return FakeForward(self.batches[-1], self.gate)


@dataclass
class FakeForward:
    batch: list[list[int]]
    gate: threading.Event

    def wait(self) -> Rows:
        assert self.gate.wait(30)
        if any(DEADLY in token_ids for token_ids in self.batch):
            raise SystemExit
        if any(POISON in token_ids for token_ids in self.batch):
            raise RuntimeError("poisoned")
        rows = np.array([row_of(token_ids) for token_ids in self.batch], np.float32)
        rows[[HOLLOW in token_ids for token_ids in self.batch], 1] = np.nan
        return rows
