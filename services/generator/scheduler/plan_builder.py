"""Collects the rows of one step and packs them into a StepPlan.

Used by the Scheduler, one builder per step. Turns sequences into arrays; decides nothing.
"""

from typing import NamedTuple

import numpy as np

from services.generator.core.plan import TOKEN_ON_DEVICE, BlockUpdates, RowStates, StepPlan
from services.generator.core.sequence import Sequence


class Scheduled(NamedTuple):
    """Tokens `[start, start + length)` of one sequence."""

    sequence: Sequence
    row: int
    start: int
    length: int
    is_decode: bool
    samples: bool


class PlanBuilder:
    """The step being put together."""

    def __init__(self, step_id: int) -> None:
        self._step_id = step_id
        self._scheduled: list[Scheduled] = []
        self._new: list[Sequence] = []
        self._blocks: list[tuple[int, int, int]] = []

    def add(self, sequence: Sequence, length: int, num_old_blocks: int) -> None:
        """Schedule the next `length` tokens of a sequence whose row knows the first `num_old_blocks` of its blocks."""
        start = sequence.num_computed_tokens
        is_decode = length == 1 and start >= sequence.num_prompt_tokens
        samples = start + length == sequence.num_tokens
        row = _row(sequence)
        self._scheduled.append(Scheduled(sequence, row, start, length, is_decode, samples))
        for column in range(num_old_blocks, len(sequence.block_ids)):
            self._blocks.append((row, column, sequence.block_ids[column]))

    def begin_row(self, sequence: Sequence) -> None:
        """The sequence's row starts with this step: its sampling parameters go along."""
        self._new.append(sequence)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was scheduled."""
        return not self._scheduled

    def build(self) -> tuple[StepPlan, list[Sequence]]:
        """The plan, and the sequences that sample in it, in the order of `plan.sampled`."""
        # Decode rows first, then the prefill chunks, short ones before long ones.
        ordered = sorted(self._scheduled, key=lambda item: 0 if item.is_decode else item.length)
        sampled = [index for index, item in enumerate(ordered) if item.samples]
        sequences = [ordered[index].sequence for index in sampled]
        sampling = [sequence.request.sampling for sequence in sequences]
        plan = StepPlan(
            step_id=self._step_id,
            rows=np.array([item.row for item in ordered], np.int32),
            num_decodes=sum(item.is_decode for item in ordered),
            num_new_tokens=np.array([item.length for item in ordered], np.int32),
            num_computed_tokens=np.array([item.start for item in ordered], np.int32),
            token_ids=np.array([token_id for item in ordered for token_id in _tokens(item)], np.int32),
            sampled=np.array(sampled, np.int32),
            new_rows=self._row_states(),
            block_updates=self._block_updates(),
            is_greedy=all(params.temperature == 0 for params in sampling),
            has_filters=any(params.top_k > 0 or params.top_p < 1 for params in sampling),
        )
        return plan, sequences

    def _row_states(self) -> RowStates:
        sampling = [sequence.request.sampling for sequence in self._new]
        return RowStates(
            rows=np.array([_row(sequence) for sequence in self._new], np.int32),
            temperature=np.array([params.temperature for params in sampling], np.float32),
            top_p=np.array([params.top_p for params in sampling], np.float32),
            top_k=np.array([params.top_k for params in sampling], np.int32),
            seed=np.array([params.seed for params in sampling], np.int64),
        )

    def _block_updates(self) -> BlockUpdates:
        table = np.array(self._blocks, np.int32).reshape(-1, 3)
        return BlockUpdates(rows=table[:, 0], columns=table[:, 1], block_ids=table[:, 2])


def _row(sequence: Sequence) -> int:
    assert sequence.row is not None  # noqa: S101 - only running sequences are scheduled
    return sequence.row


def _tokens(item: Scheduled) -> list[int]:
    known = item.sequence.known_tokens(item.start, item.start + item.length)
    return known + [TOKEN_ON_DEVICE] * (item.length - len(known))
