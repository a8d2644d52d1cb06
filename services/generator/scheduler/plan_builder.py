"""Collects the rows of one step and packs them into a StepPlan.

Used by the Scheduler, one builder per step. Turns sequences into arrays; decides nothing.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import NamedTuple

import numpy as np

from services.generator.core.plan import TOKEN_ON_DEVICE, BlockUpdates, IntArray, StepPlan
from services.generator.core.sequence import Sequence
from services.generator.scheduler.row_states import features_of, row_states


class Scheduled(NamedTuple):
    """Tokens `[start, start + length)` of one sequence."""

    sequence: Sequence
    row: int
    start: int
    length: int
    is_decode: bool
    samples: bool


class BuiltPlan(NamedTuple):
    """A plan and the sequences behind its arrays.

    Attributes:
        sampled: in the order of `plan.sampled`.
        scored: in the order of `plan.scored`, with how many of its entries belong to each.
    """

    plan: StepPlan
    sampled: list[Sequence]
    scored: list[tuple[Sequence, int]]


class Scored(NamedTuple):
    """Prompt tokens of one sequence whose successors' log-probabilities are wanted."""

    sequence: Sequence
    indices: range
    successors: list[int]
    num_top: int


class PlanBuilder:
    """The step being put together."""

    def __init__(self, step_id: int, vocab_size: int) -> None:
        self._step_id = step_id
        self._vocab_size = vocab_size
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

    def build(self) -> BuiltPlan:
        """The plan, and whose tokens its result will hold."""
        # Decode rows first, then the prefill chunks, short ones before long ones.
        ordered = sorted(self._scheduled, key=lambda item: 0 if item.is_decode else item.length)
        sampled = [index for index, item in enumerate(ordered) if item.samples]
        sequences = [ordered[index].sequence for index in sampled]
        scored = _scored(ordered)
        plan = StepPlan(
            step_id=self._step_id,
            rows=_ints(item.row for item in ordered),
            num_decodes=sum(item.is_decode for item in ordered),
            num_new_tokens=_ints(item.length for item in ordered),
            num_computed_tokens=_ints(item.start for item in ordered),
            token_ids=_ints(token_id for item in ordered for token_id in _tokens(item)),
            sampled=_ints(sampled),
            new_rows=row_states(self._new, _ints(map(_row, self._new)), self._vocab_size),
            block_updates=self._block_updates(),
            features=features_of([sequence.request.sampling for sequence in sequences]),
            scored=_ints(index for part in scored for index in part.indices),
            scored_ids=_ints(token_id for part in scored for token_id in part.successors),
            num_prompt_logprobs=max((part.num_top for part in scored), default=0),
        )
        return BuiltPlan(plan, sequences, [(part.sequence, len(part.indices)) for part in scored])

    def _block_updates(self) -> BlockUpdates:
        table = np.array(self._blocks, np.int32).reshape(-1, 3)
        return BlockUpdates(rows=table[:, 0], columns=table[:, 1], block_ids=table[:, 2])


def _row(sequence: Sequence) -> int:
    assert sequence.row is not None  # noqa: S101 - only running sequences are scheduled
    return sequence.row


def _tokens(item: Scheduled) -> list[int]:
    known = item.sequence.known_tokens(item.start, item.start + item.length)
    return known + [TOKEN_ON_DEVICE] * (item.length - len(known))


def _scored(ordered: Rows[Scheduled]) -> list[Scored]:
    """Where prompt log-probabilities are wanted: each prompt token once, the first one never."""
    parts: list[Scored] = []
    offset = 0
    for item in ordered:
        sequence, num_top = item.sequence, item.sequence.request.sampling.prompt_logprobs
        if num_top is not None:
            start = max(item.start, sequence.num_scored_tokens)
            end = min(item.start + item.length, sequence.num_prompt_tokens - 1)
            if start < end:
                indices = range(offset + start - item.start, offset + end - item.start)
                parts.append(Scored(sequence, indices, sequence.known_tokens(start + 1, end + 1), num_top))
                sequence.num_scored_tokens = end
        offset += item.length
    return parts


def _ints(values: Iterable[int]) -> IntArray:
    return np.array(list(values), np.int32)
