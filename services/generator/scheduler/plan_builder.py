"""Collects the rows of one step and packs them into a StepPlan.

Used by the Scheduler, one builder per step. Turns sequences into arrays; decides nothing.
"""

import numpy as np

from services.generator.core.plan import TOKEN_ON_DEVICE, BlockUpdates, RowStates, StepPlan
from services.generator.core.sequence import Sequence


class PlanBuilder:
    """The step being put together; `scheduled` holds each sequence with its number of new tokens."""

    def __init__(self, step_id: int) -> None:
        self._step_id = step_id
        self.scheduled: list[tuple[Sequence, int]] = []
        self._new: list[Sequence] = []
        self._blocks: list[tuple[int, int, int]] = []

    def add(self, sequence: Sequence, num_new_tokens: int, num_old_blocks: int) -> None:
        """Schedule `num_new_tokens` of a sequence whose block table had `num_old_blocks` entries before it grew."""
        row = _row(sequence)
        self.scheduled.append((sequence, num_new_tokens))
        for column in range(num_old_blocks, len(sequence.block_ids)):
            self._blocks.append((row, column, sequence.block_ids[column]))

    def begin_row(self, sequence: Sequence) -> None:
        """The sequence's row starts with this step: its sampling parameters go along."""
        self._new.append(sequence)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was scheduled."""
        return not self.scheduled

    def build(self) -> tuple[StepPlan, list[Sequence]]:
        """The plan, and the sequences that sample in it, in the order of `plan.sampled`."""
        # A row with one token left and an output token decodes; the rest are prefill chunks and follow, short ones first.
        ordered = sorted(self.scheduled, key=lambda item: 0 if _is_decode(*item) else item[1])
        sequences = [sequence for sequence, _ in ordered]
        starts = [sequence.num_computed_tokens for sequence in sequences]
        lengths = [length for _, length in ordered]
        sampled = [i for i, (sequence, length) in enumerate(ordered) if _samples(sequence, length)]
        sampling = [sequences[i].request.sampling for i in sampled]
        plan = StepPlan(
            step_id=self._step_id,
            rows=np.array([_row(sequence) for sequence in sequences], np.int32),
            num_decodes=sum(_is_decode(*item) for item in ordered),
            num_new_tokens=np.array(lengths, np.int32),
            num_computed_tokens=np.array(starts, np.int32),
            token_ids=np.array([t for item in ordered for t in _tokens(*item)], np.int32),
            sampled=np.array(sampled, np.int32),
            new_rows=self._row_states(),
            block_updates=self._block_updates(),
            is_greedy=all(params.temperature == 0 for params in sampling),
            has_filters=any(params.top_k > 0 or params.top_p < 1 for params in sampling),
        )
        return plan, [sequences[i] for i in sampled]

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


def _is_decode(sequence: Sequence, num_new_tokens: int) -> bool:
    return num_new_tokens == 1 and sequence.num_computed_tokens >= sequence.num_prompt_tokens


def _samples(sequence: Sequence, num_new_tokens: int) -> bool:
    return sequence.num_computed_tokens + num_new_tokens == sequence.num_tokens


def _tokens(sequence: Sequence, num_new_tokens: int) -> list[int]:
    start = sequence.num_computed_tokens
    known = sequence.known_tokens(start, start + num_new_tokens)
    return known + [TOKEN_ON_DEVICE] * (num_new_tokens - len(known))
