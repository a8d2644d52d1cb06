"""Collects the rows of one step and packs them into a StepPlan.

Used by the Scheduler, one builder per step. Turns sequences into arrays; decides nothing.
"""

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import NamedTuple

import numpy as np

from services.generator.core.plan import (
    TOKEN_ON_DEVICE,
    AdapterCopy,
    BlockUpdates,
    ImageEncode,
    IntArray,
    StepPlan,
)
from services.generator.core.sequence import Sequence
from services.generator.core.slots import NO_ADAPTER
from services.generator.scheduler.chunk import Chunk
from services.generator.scheduler.image_arrays import image_work, step_rope_positions
from services.generator.scheduler.row_states import row_states, union
from shared.errors import InternalError


class BuiltPlan(NamedTuple):
    """A plan and the sequences behind its arrays.

    Attributes:
        sequences: all that have tokens in it.
        sampled: in the order of `plan.sampled`.
        scored: in the order of `plan.scored`, with how many of its entries belong to each.
    """

    plan: StepPlan
    sequences: list[Sequence]
    sampled: list[Sequence]
    scored: list[tuple[Sequence, int]]


class Scored(NamedTuple):
    """Prompt tokens of one sequence whose successors' log-probabilities are wanted."""

    sequence: Sequence
    indices: range
    successors: list[int]
    num_top: int


class PlanBuilder:
    """The step being put together.

    Decode rows are most of what a busy engine plans, so they go straight into columns.

    Args:
        has_axes: see `ImageLimits`.
    """

    def __init__(self, step_id: int, vocab_size: int, *, has_axes: bool) -> None:
        self._step_id = step_id
        self._vocab_size = vocab_size
        self._has_axes = has_axes
        self._decodes: list[Sequence] = []
        self._decode_starts: list[int] = []
        self._decode_ids: list[int] = []
        self._chunks: list[Chunk] = []
        self._new: list[Sequence] = []
        self._blocks: list[tuple[int, int, int]] = []

    def add(self, sequence: Sequence, length: int, num_old_blocks: int) -> None:
        """Schedule the next `length` tokens of a sequence whose row knows the first `num_old_blocks` of its blocks."""
        start, output = sequence.num_computed_tokens, sequence.output_token_ids
        index = start - sequence.num_prompt_tokens  # of the first of them in the output
        if length == 1 and index >= 0 and index + 1 == len(output) + sequence.num_pending:
            self._decodes.append(sequence)
            self._decode_starts.append(start)
            self._decode_ids.append(TOKEN_ON_DEVICE if sequence.num_pending else output[index])
        else:
            samples = start + length == sequence.num_tokens
            self._chunks.append(Chunk(sequence, _row(sequence), start, length, samples))
        if len(sequence.block_ids) > num_old_blocks:
            row = _row(sequence)
            self._blocks += [(row, at, sequence.block_ids[at]) for at in range(num_old_blocks, len(sequence.block_ids))]

    def begin_row(self, sequence: Sequence) -> None:
        """The sequence's row starts with this step: its sampling parameters go along."""
        self._new.append(sequence)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was scheduled."""
        return not self._decodes and not self._chunks

    def build(self, adapter_copies: list[AdapterCopy], encodes: list[ImageEncode]) -> BuiltPlan:
        """The plan, and whose tokens its result will hold."""
        # Decode rows first, then the prefill chunks, short ones before long ones.
        chunks = sorted(self._chunks, key=lambda chunk: chunk.length)
        num_decodes = len(self._decodes)
        sampling_chunks = [index for index, chunk in enumerate(chunks, num_decodes) if chunk.samples]
        everyone = self._decodes + [chunk.sequence for chunk in chunks]
        sequences = self._decodes + [chunk.sequence for chunk in chunks if chunk.samples]
        scored = _scored(chunks, num_decodes)
        plan = StepPlan(
            step_id=self._step_id,
            rows=_ints(map(_row, everyone)),
            num_decodes=num_decodes,
            num_new_tokens=_ints([1] * num_decodes + [chunk.length for chunk in chunks]),
            num_computed_tokens=_ints(self._decode_starts + [chunk.start for chunk in chunks]),
            token_ids=_ints(itertools.chain(self._decode_ids, *map(_tokens, chunks))),
            sampled=_ints([*range(num_decodes), *sampling_chunks]),
            new_rows=row_states(self._new, _ints(map(_row, self._new)), self._vocab_size),
            block_updates=self._block_updates(),
            features=union(sequence.features for sequence in sequences),
            scored=_ints(index for part in scored for index in part.indices),
            scored_ids=_ints(token_id for part in scored for token_id in part.successors),
            num_prompt_logprobs=max((part.num_top for part in scored), default=0),
            adapter_slots=_ints(map(_adapter_slot, everyone)),
            adapter_copies=adapter_copies,
            images=image_work(chunks, num_decodes, encodes),
            rope_positions=step_rope_positions(self._decodes, self._decode_starts, chunks) if self._has_axes else None,
        )
        return BuiltPlan(plan, everyone, sequences, [(part.sequence, len(part.indices)) for part in scored])

    def _block_updates(self) -> BlockUpdates:
        table = np.array(self._blocks, np.int32).reshape(-1, 3)
        return BlockUpdates(rows=table[:, 0], columns=table[:, 1], block_ids=table[:, 2])


def _row(sequence: Sequence) -> int:
    assert sequence.row is not None  # noqa: S101 - only running sequences are scheduled
    return sequence.row


def _adapter_slot(sequence: Sequence) -> int:
    if sequence.adapter is None:
        return NO_ADAPTER
    if sequence.adapter.slot is None:
        raise InternalError("a sequence was planned whose adapter has no slot; this is a bug")
    return sequence.adapter.slot


def _tokens(chunk: Chunk) -> list[int]:
    known = chunk.sequence.known_tokens(chunk.start, chunk.end)
    return known + [TOKEN_ON_DEVICE] * (chunk.length - len(known))


def _scored(chunks: Rows[Chunk], offset: int) -> list[Scored]:
    """Where prompt log-probabilities are wanted: each prompt token once, the first one never.

    Args:
        offset: tokens of the step before the first chunk.
    """
    parts: list[Scored] = []
    for chunk in chunks:
        sequence, num_top = chunk.sequence, chunk.sequence.request.sampling.prompt_logprobs
        if num_top is not None:
            start = max(chunk.start, sequence.num_scored_tokens)
            end = min(chunk.end, sequence.num_prompt_tokens - 1)
            if start < end:
                indices = range(offset + start - chunk.start, offset + end - chunk.start)
                parts.append(Scored(sequence, indices, sequence.known_tokens(start + 1, end + 1), num_top))
                sequence.num_scored_tokens = end
        offset += chunk.length
    return parts


def _ints(values: Iterable[int]) -> IntArray:
    return np.array(list(values), np.int32)
