"""CUDA graphs of steps: captured at start for some numbers of tokens, replayed for every step that fits one.

Owned by the ModelRunner. A graph reads its indices from one fixed buffer and leaves its outputs at fixed addresses, valid until the
next replay. Steps without adapters have graphs of their own, so that they pay nothing for a bank; those with adapters have one for
each way in which adapters are computed, and fit any mix of adapters. A step of some hundred tokens that computes prompts takes
longer to launch than to run, and so has graphs too; beyond, the device is busy long enough.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from services.generator.core.plan import StepPlan
from services.generator.runner.graph_shapes import GraphShapes
from services.generator.runner.step_layout import StepLayout, StepShape
from shared.modeling.transfers import copy_into


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


class Compute(Protocol):
    """From a packed step on the device to its outputs, launching always the same for one layout."""

    def __call__(self, packed: Tensor, layout: StepLayout, *, logits: Tensor) -> StepOutputs:
        """`logits` [N, V] is where they shall be."""
        ...


MakeLayout = Callable[[StepShape], StepLayout]


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """One graph."""

    layout: StepLayout
    graph: torch.cuda.CUDAGraph
    outputs: StepOutputs


class StepGraphs:
    """All graphs; none before they are captured.

    All write their logits, the largest of what they leave, to one buffer: its size is that of the largest graph's, not the sum.

    Args:
        vocab_size: V.
        dtype: of the logits.
    """

    def __init__(
        self, make_layout: MakeLayout, shapes: GraphShapes, vocab_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shapes = shapes
        self._layouts = {shape: make_layout(shape) for shape in shapes.all}
        num_packed = max(layout.borders()[-1] for layout in self._layouts.values())
        self._packed = torch.zeros(num_packed, dtype=torch.int32, device=device)
        num_rows = max(shape.num_sampled for shape in shapes.all)
        self._logits = torch.zeros(num_rows, vocab_size, dtype=dtype, device=device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[StepShape, CapturedStep] = {}

    @property
    def num_graphs(self) -> int:
        """How many were captured."""
        return len(self._graphs)

    def capture(self, compute: Compute, shapes: Iterable[StepShape]) -> None:
        """Capture graphs of some shapes, in this order.

        `compute` is not kept: it is the owner's, who with these graphs shall be gone as soon as nobody holds it.
        """
        for shape in shapes:
            self._graphs[shape] = self._capture(compute, self._layouts[shape])

    def replay(self, plan: StepPlan) -> StepOutputs | None:
        """Launch a step, whose plan the tables must have applied; None where it fits no graph."""
        shape = self._shapes.of_plan(plan)
        if shape is None:
            return None
        captured = self._graphs[shape]
        copy_into(self._packed, captured.layout.pack(plan))
        captured.graph.replay()
        return captured.outputs.first(len(plan.sampled))

    def _capture(self, compute: Compute, layout: StepLayout) -> CapturedStep:
        packed = self._packed[: layout.borders()[-1]]
        logits = self._logits[: layout.shape.num_sampled]
        copy_into(packed, layout.pack_padding())
        compute(packed, layout, logits=logits)  # compiles kernels and makes workspaces, which a capture must not
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = compute(packed, layout, logits=logits)
        # Hidden states are not kept: their memory is for the next graph.
        return CapturedStep(layout, graph, outputs._replace(hidden=outputs.hidden[:0].clone()))
