"""How the adapters of a step are computed: a matter of sizes, so that a graph replays whatever the mix of adapters.

Chosen by the ModelRunner and `step_graphs` from a plan, part of a `StepShape`. Knows numbers of rows and slots, no tensor.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from services.generator.core.plan import StepPlan
from services.generator.core.slots import NO_ADAPTER
from services.generator.kernels.lora_segments import chunk_size_for, chunk_sizes

JOINED_TOKENS = 256
"""Up to so many tokens the base products take the rank-r side of all first slots along: they wait for weights, not for sums."""

JOINED_RANKS = 1024
"""The most ranks of all those slots together; of the Llama-3-8B shape the products then read 18 % more. H200, 2026-11-30."""

FEWEST_JOINED, JOINED_STEP = 8, 4
"""Numbers of first slots for which there are graphs: 8, 32, 128, … and as many as may be."""


class LoraShape(NamedTuple):
    """The way of one step.

    Attributes:
        chunk_size: rows of a chunk of `LoraSegments`; 1 for a program per row.
        num_joined: see `AdapterRows`.
    """

    chunk_size: int
    num_joined: int


class LoraShapes:
    """The ways there are for a bank.

    Args:
        num_slots: of the bank.
        max_rank: that a slot has room for.
    """

    def __init__(self, num_slots: int, max_rank: int) -> None:
        most, count = min(num_slots, JOINED_RANKS // max_rank), FEWEST_JOINED
        self._joined = [most] if most else []
        while count < most:
            self._joined.insert(-1, count)
            count *= JOINED_STEP
        self._joined_is_enough = most == num_slots
        self._num_slots = num_slots
        self._max_rank = max_rank

    def of_plan(self, plan: StepPlan, num_tokens: int) -> LoraShape | None:
        """The way for a plan's adapters in a step of `num_tokens`, padding included; None where it has no adapter."""
        slots = np.unique(plan.adapter_slots[plan.adapter_slots != NO_ADAPTER])
        if len(slots) == 0:
            return None
        chunk_size = chunk_size_for(num_tokens, len(slots), self._max_rank)
        joined = self._joined_counts(num_tokens, chunk_size, is_decode=plan.is_decode)
        return LoraShape(chunk_size, next((count for count in joined if count > slots[-1]), 0))

    def ways(self, num_tokens: int, *, is_decode: bool) -> Iterator[LoraShape]:
        """All that may be answered for a step of `num_tokens`."""
        for chunk_size in self._chunk_sizes(num_tokens):
            joined = self._joined_counts(num_tokens, chunk_size, is_decode=is_decode)
            for num_joined in joined if joined and self._joined_is_enough else [0, *joined]:
                yield LoraShape(chunk_size, num_joined)

    def ways_between(self, fewest: int, most: int) -> list[LoraShape]:
        """Such that, in steps of `most` tokens, they launch the kernels as every step of `fewest` to `most` does.

        Fewer tokens come in smaller chunks and more in larger ones, so that the ends have all there are between them. What is
        joined is launched alike by steps of any size, so that those of a range which goes beyond are left to the one before.
        """
        ends = {end for end in (fewest, JOINED_TOKENS + 1, most) if fewest <= end <= most}
        ways = {way for end in ends for way in self.ways(end, is_decode=False)}
        return sorted(way for way in ways if way.num_joined == 0 or most <= JOINED_TOKENS)

    def _chunk_sizes(self, num_tokens: int) -> list[int]:
        most_adapters = min(num_tokens, self._num_slots)
        return sorted({chunk_size_for(num_tokens, count, self._max_rank) for count in range(1, most_adapters + 1)})

    def _joined_counts(self, num_tokens: int, chunk_size: int, *, is_decode: bool) -> list[int]:
        """In rising order. One only where there are many sizes, of prompts, and where a step of many rows has few adapters."""
        if num_tokens > JOINED_TOKENS:
            return []
        return self._joined if is_decode and chunk_size < chunk_sizes()[-1] else self._joined[-1:]
