"""Where each index of a step lies in one packed buffer, so that a step copies once and a graph replays on fixed addresses.

Packed with NumPy on the host by the ModelRunner and `step_graphs`, taken apart on the device as views by `step_inputs`. Holds no
tensor. A layout depends on sizes only; a step may be packed into one with more rows than it has: the padding tokens then belong to
the spare row of the tables, and nothing that they compute is kept.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from services.generator.core.plan import NUM_AXES, TOKEN_ON_DEVICE, IntArray, StepPlan
from services.generator.core.slots import NO_ADAPTER
from services.generator.kernels.lora_segments import SegmentLayout, max_adapters_for
from services.generator.kernels.query_tiles import NO_ROW, max_query_tiles, query_tiles
from services.generator.runner.lora_shape import LoraShape

PADDING_TOKEN = TOKEN_ON_DEVICE - 1
"""Stands in the packed token ids for a token that only fills a graph."""

ArrayT = TypeVar("ArrayT")


class StepShape(NamedTuple):
    """Sizes of a step; what a graph is captured for.

    Attributes:
        num_tokens: tokens of the step (T).
        num_decodes: rows with one token each, which come first.
        num_rows: all rows (S).
        num_sampled: rows that sample (N).
        lora: how adapters are computed; None where no row has one.
    """

    num_tokens: int
    num_decodes: int
    num_rows: int
    num_sampled: int
    lora: LoraShape | None


def decode_shape(num_rows: int, lora: LoraShape | None) -> StepShape:
    """A step of `num_rows` decode rows and nothing else."""
    return StepShape(num_rows, num_rows, num_rows, num_rows, lora)


class StepArrays(NamedTuple, Generic[ArrayT]):
    """The parts of a packed buffer, all int32.

    Attributes:
        token_ids: [T] ids, TOKEN_ON_DEVICE or PADDING_TOKEN.
        positions: [T].
        token_rows: [T] state row of each token.
        rows: [S] state row of each row of the step.
        context_lens: [S] keys of each row, those of this step included; 0 of padding.
        cu_query_lens: [S - num_decodes + 1] where the tokens of each prefill row begin, counted from the first of them.
        tiles: [2 * tiles] see `query_tiles`.
        logits_index: [N] tokens whose hidden state is turned into logits.
        lora: packed `LoraSegments`; empty where no row has an adapter.
        rope_positions: [3 * T] on each axis; empty where rotary positions have one axis, which are `positions`.
    """

    token_ids: ArrayT
    positions: ArrayT
    token_rows: ArrayT
    rows: ArrayT
    context_lens: ArrayT
    cu_query_lens: ArrayT
    tiles: ArrayT
    logits_index: ArrayT
    lora: ArrayT
    rope_positions: ArrayT


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The packed buffer of steps of one shape.

    Attributes:
        num_slots: slots of the adapter bank.
        max_rank: of the bank.
        spare_row: state row of padding.
        has_axes: whether rotary positions have three axes.
    """

    shape: StepShape
    num_slots: int
    max_rank: int
    spare_row: int
    has_axes: bool = False

    @property
    def segments(self) -> SegmentLayout | None:
        """Layout of the part about adapters."""
        if self.shape.lora is None:
            return None
        num_tokens, chunk_size = self.shape.num_tokens, self.shape.lora.chunk_size
        max_adapters = min(self.num_slots, max_adapters_for(num_tokens, chunk_size, self.max_rank))
        return SegmentLayout(num_tokens, max_adapters, chunk_size)

    @property
    def num_tiles(self) -> int:
        """Query tiles that there is room for."""
        shape = self.shape
        num_tokens = shape.num_tokens - shape.num_decodes
        return max_query_tiles(num_tokens, shape.num_rows - shape.num_decodes) if num_tokens else 0

    def borders(self) -> list[int]:
        """Where each of `StepArrays` begins, and where the last one ends."""
        t, d, s, n, _ = self.shape
        num_lora = 0 if self.segments is None else self.segments.size
        num_axes = NUM_AXES if self.has_axes else 0
        sizes = (t, t, t, s, s, s - d + 1, 2 * self.num_tiles, n, num_lora, num_axes * t)
        return [0, *np.cumsum(sizes).tolist()]

    def split(self, packed: ArrayT) -> StepArrays[ArrayT]:
        """The parts of a buffer, as views of it: an array's or a tensor's."""
        parts = [packed[start:end] for start, end in pairwise(self.borders())]  # type: ignore[index]
        return StepArrays(*parts)

    def pack(self, plan: StepPlan) -> IntArray:
        """A plan's indices as one int32 array."""
        packed = np.zeros(self.borders()[-1], np.int32)
        arrays = self.split(packed)
        num_tokens, num_rows = plan.num_tokens, len(plan.rows)
        ends = np.cumsum(plan.num_new_tokens, dtype=np.int32)
        token_rows = np.repeat(np.arange(num_rows), plan.num_new_tokens)  # [T] row of the step of each token
        offsets = np.arange(num_tokens) - (ends - plan.num_new_tokens)[token_rows]  # [T] place within its chunk
        arrays.token_ids[:num_tokens], arrays.token_ids[num_tokens:] = plan.token_ids, PADDING_TOKEN
        arrays.positions[:num_tokens] = plan.num_computed_tokens[token_rows] + offsets
        arrays.token_rows[:num_tokens], arrays.token_rows[num_tokens:] = plan.rows[token_rows], self.spare_row
        arrays.rows[:num_rows], arrays.rows[num_rows:] = plan.rows, self.spare_row
        arrays.context_lens[:num_rows] = plan.num_computed_tokens + plan.num_new_tokens
        arrays.logits_index[: len(plan.sampled)] = ends[plan.sampled] - 1
        self._pack_queries(plan, arrays)
        if self.segments is not None:
            slots = np.full(self.shape.num_tokens, NO_ADAPTER, np.int32)
            slots[:num_tokens] = plan.adapter_slots[token_rows]
            arrays.lora[:] = self.segments.pack(slots)
        if self.has_axes:  # text alone stands at the same place on all axes
            axes = arrays.positions[:num_tokens] if plan.rope_positions is None else plan.rope_positions
            arrays.rope_positions.reshape(NUM_AXES, -1)[:, :num_tokens] = axes
        return packed

    def pack_padding(self) -> IntArray:
        """A step of nothing but padding."""
        packed = np.zeros(self.borders()[-1], np.int32)
        arrays = self.split(packed)
        arrays.token_ids[:] = PADDING_TOKEN
        arrays.token_rows[:], arrays.rows[:], arrays.tiles[:] = self.spare_row, self.spare_row, NO_ROW
        if self.segments is not None:
            arrays.lora[:] = self.segments.pack(np.full(self.shape.num_tokens, NO_ADAPTER, np.int32))
        return packed

    def _pack_queries(self, plan: StepPlan, arrays: StepArrays[IntArray]) -> None:
        if self.num_tiles:
            lens = plan.num_new_tokens[self.shape.num_decodes :]
            arrays.cu_query_lens[1 : len(lens) + 1] = np.cumsum(lens)
            arrays.cu_query_lens[len(lens) + 1 :] = lens.sum()
            context_lens = lens + plan.num_computed_tokens[self.shape.num_decodes :]
            arrays.tiles[:] = query_tiles(context_lens, lens, self.num_tiles).reshape(-1)
