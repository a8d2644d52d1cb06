"""How the adapters of a step are computed: a matter of sizes, so that a graph replays whatever the mix of adapters.

Chosen by the ModelRunner and `step_graphs` from a plan, part of a `StepShape`. Knows numbers of rows and slots, no tensor.
"""

from collections.abc import Iterator
from itertools import product
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

    def of_plan(self, plan: StepPlan, num_tokens: int) -> LoraShape | None:
        """The way for a plan's adapters in a step of `num_tokens`, padding included; None where it has no adapter."""
        slots = np.unique(plan.adapter_slots[plan.adapter_slots != NO_ADAPTER])
        if len(slots) == 0:
            return None
        # Steps that compute prompts come in many sizes, so that there is but one way of them.
        joined = self._joined if plan.is_decode else self._joined[-1:]
        fitting = (count for count in joined if num_tokens <= JOINED_TOKENS and count > slots[-1])
        return LoraShape(chunk_size_for(num_tokens, len(slots)), next(fitting, 0))

    def of_decodes(self, num_rows: int) -> Iterator[LoraShape]:
        """All that may be answered for decode rows alone."""
        for chunk_size, num_joined in product(_chunk_sizes(num_rows), self._counts(num_rows)):
            yield LoraShape(chunk_size, num_joined)

    def of_prompts(self, num_tokens: int) -> Iterator[LoraShape]:
        """All that may be answered for a step with other rows."""
        for chunk_size, num_joined in product(_chunk_sizes(num_tokens), self._widest(num_tokens)):
            yield LoraShape(chunk_size, num_joined)

    def of_tokens(self, num_tokens: int) -> Iterator[LoraShape]:
        """Such that with them every kernel is launched in every way there is for this many tokens."""
        for chunk_size, num_joined in product(chunk_sizes(), self._widest(num_tokens)):
            yield LoraShape(chunk_size, num_joined)

    def _widest(self, num_tokens: int) -> list[int]:
        counts = self._counts(num_tokens)
        return sorted({0, counts[-1]} & set(counts))

    def _counts(self, num_tokens: int) -> list[int]:
        joined = self._joined if num_tokens <= JOINED_TOKENS else []
        return [*joined] if joined and self._joined_is_enough else [0, *joined]


def _chunk_sizes(num_tokens: int) -> list[int]:
    return sorted({chunk_size_for(num_tokens, count) for count in range(1, num_tokens + 1)})
