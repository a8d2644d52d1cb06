"""CUDA graphs of steps: captured at start for some numbers of tokens, replayed for every step that fits one.

Owned by the ModelRunner. A graph reads its indices from one fixed buffer and leaves its outputs at fixed addresses, valid until the
next replay. Steps without adapters have graphs of their own, so that they pay nothing for a bank; those with adapters have one for
each way in which adapters are computed, and fit any mix of adapters. A step of some hundred tokens that computes prompts takes
longer to launch than to run, and so has graphs too; beyond, the device is busy long enough.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from services.generator.core.plan import StepPlan
from services.generator.core.specs import SchedulerLimits
from services.generator.runner.lora_shape import LoraShape, LoraShapes
from services.generator.runner.step_layout import StepLayout, StepShape, decode_shape
from shared.modeling.transfers import copy_into

SMALL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
STEP_BEYOND = 64
"""Numbers of decode rows for which there are graphs, and beyond the last of them the step from one to the next."""

PROMPT_SIZES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Tokens of steps that compute prompts, for which there are graphs."""


class GraphSizes(NamedTuple):
    """Numbers of tokens, in rising order: of steps of decode rows alone, and of those with rows that compute prompts."""

    decodes: list[int]
    prompts: list[int]

    def of(self, is_decode: bool) -> list[int]:
        """One of the two."""
        return self.decodes if is_decode else self.prompts


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


class StepGraphs:
    """All graphs.

    Args:
        lora: how adapters of rows may be computed; None where there are none.
    """

    def __init__(
        self,
        compute: Compute,
        make_layout: MakeLayout,
        limits: SchedulerLimits,
        device: torch.device,
        lora: LoraShapes | None,
    ) -> None:
        self._sizes = graph_sizes(limits)
        self._lora = lora
        layouts = [make_layout(shape) for shape in _shapes(self._sizes, limits, lora)]
        self._packed = torch.zeros(max(layout.borders()[-1] for layout in layouts), dtype=torch.int32, device=device)
        pool = torch.cuda.graph_pool_handle()
        self._graphs = {  # the largest first, so that the others find memory for theirs
            _key(layout.shape): self._capture(compute, layout, pool) for layout in reversed(layouts)
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
        return captured.outputs.first(len(plan.sampled))

    def _find(self, plan: StepPlan) -> CapturedStep | None:
        if plan.images is not None or len(plan.scored):
            return None  # a graph knows no images, and keeps no hidden states
        size = next((size for size in self._sizes.of(plan.is_decode) if size >= plan.num_tokens), None)
        if size is None:
            return None
        lora = None if self._lora is None else self._lora.of_plan(plan, size)
        return self._graphs[plan.is_decode, size, lora]

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


def graph_sizes(limits: SchedulerLimits) -> GraphSizes:
    """Numbers of tokens that graphs are captured for."""
    most = limits.max_num_batched_tokens
    max_rows = min(limits.max_num_seqs, most)
    sizes = [*SMALL_SIZES, *range(SMALL_SIZES[-1] + STEP_BEYOND, max_rows, STEP_BEYOND)]
    decodes = [*(size for size in sizes if size < max_rows), max_rows]
    return GraphSizes(decodes, sorted({min(size, most) for size in PROMPT_SIZES}))


def prompt_shape(num_tokens: int, limits: SchedulerLimits, lora: LoraShape | None) -> StepShape:
    """A step of `num_tokens` in rows of any length, each of which may sample."""
    num_rows = min(num_tokens, limits.max_num_seqs)
    return StepShape(num_tokens, 0, num_rows, num_rows, lora)


def _shapes(sizes: GraphSizes, limits: SchedulerLimits, lora: LoraShapes | None) -> Iterator[StepShape]:
    for size in sizes.decodes:
        for way in [None, *(lora.of_decodes(size) if lora else [])]:
            yield decode_shape(size, way)
    for size in sizes.prompts:
        for way in [None, *(lora.of_prompts(size) if lora else [])]:
            yield prompt_shape(size, limits, way)


def _key(shape: StepShape) -> tuple[bool, int, LoraShape | None]:
    return shape.num_decodes > 0, shape.num_tokens, shape.lora
