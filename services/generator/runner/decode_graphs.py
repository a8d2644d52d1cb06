"""CUDA graphs of decode steps: captured at start for some numbers of rows, replayed for every step that fits one.

Owned by the ModelRunner. A graph reads its indices from one fixed buffer and leaves its outputs at fixed addresses, valid until the
next replay. Steps without adapters have graphs of their own, so that they pay nothing for a bank; those with adapters have one for
each way in which adapters are computed, and fit any mix of adapters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from services.generator.core.plan import StepPlan
from services.generator.runner.lora_shape import LoraShapes
from services.generator.runner.step_layout import StepLayout, StepShape, decode_shape
from shared.modeling.transfers import copy_into

SMALL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
STEP_BEYOND = 64


class StepOutputs(NamedTuple):
    """What the forward pass of a step leaves.

    Attributes:
        hidden: [T, C] after the last norm.
        logits: [N, V].
        rows: [N] int32, state rows that sample.
        positions: [N] int32, of the tokens that the logits follow.
    """

    hidden: Tensor
    logits: Tensor
    rows: Tensor
    positions: Tensor

    def first(self, count: int) -> "StepOutputs":
        """Without the rows that only fill a graph."""
        return StepOutputs(self.hidden, self.logits[:count], self.rows[:count], self.positions[:count])


Compute = Callable[[Tensor, StepLayout], StepOutputs]
"""From a packed step on the device to its outputs, launching always the same for one layout."""

MakeLayout = Callable[[StepShape], StepLayout]


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """One graph."""

    layout: StepLayout
    graph: torch.cuda.CUDAGraph
    outputs: StepOutputs


class DecodeGraphs:
    """All graphs.

    Args:
        max_rows: the most decode rows of a step.
        lora: how adapters of rows may be computed; None where there are none.
    """

    def __init__(
        self, compute: Compute, make_layout: MakeLayout, max_rows: int, device: torch.device, lora: LoraShapes | None
    ) -> None:
        self._sizes = graph_sizes(max_rows)
        self._lora = lora
        layouts = [make_layout(shape) for shape in _shapes(self._sizes, lora)]
        self._packed = torch.zeros(max(layout.borders()[-1] for layout in layouts), dtype=torch.int32, device=device)
        pool = torch.cuda.graph_pool_handle()
        self._graphs = {  # the largest first, so that the others find memory for theirs
            (layout.shape.num_rows, layout.shape.lora): self._capture(compute, layout, pool)
            for layout in reversed(layouts)
        }

    @property
    def num_graphs(self) -> int:
        """How many were captured."""
        return len(self._graphs)

    def replay(self, plan: StepPlan) -> StepOutputs | None:
        """Launch a step, whose plan the tables must have applied; None where it fits no graph."""
        captured = self._find(plan)
        if captured is None:
            return None
        copy_into(self._packed, captured.layout.pack(plan))
        captured.graph.replay()
        return captured.outputs.first(len(plan.rows))

    def _find(self, plan: StepPlan) -> CapturedStep | None:
        num_rows = len(plan.rows)
        if plan.num_decodes < num_rows or num_rows > self._sizes[-1]:
            return None
        size = next(size for size in self._sizes if size >= num_rows)
        lora = None if self._lora is None else self._lora.of_plan(plan, size)
        return self._graphs[size, lora]

    def _capture(self, compute: Compute, layout: StepLayout, pool: Any) -> CapturedStep:
        packed = self._packed[: layout.borders()[-1]]
        copy_into(packed, layout.pack_padding())
        compute(packed, layout)  # compiles kernels and makes workspaces, which a capture must not
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs = compute(packed, layout)
        # Hidden states are not kept: their memory is for the next graph.
        return CapturedStep(layout, graph, outputs._replace(hidden=outputs.hidden[:0].clone()))


def graph_sizes(max_rows: int) -> list[int]:
    """Numbers of rows that graphs are captured for; the last is `max_rows`."""
    sizes = [*SMALL_SIZES, *range(SMALL_SIZES[-1] + STEP_BEYOND, max_rows, STEP_BEYOND)]
    return [*(size for size in sizes if size < max_rows), max_rows]


def _shapes(sizes: list[int], lora: LoraShapes | None) -> Iterator[StepShape]:
    for size in sizes:
        yield decode_shape(size, None)
        if lora is not None:
            for lora_shape in lora.of_decodes(size):
                yield decode_shape(size, lora_shape)
