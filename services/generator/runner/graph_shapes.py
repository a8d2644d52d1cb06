"""Which steps there are CUDA graphs for, and which of them a step is replayed as.

Asked by `step_graphs`, and at start for what to capture. Knows sizes, no tensor. A step is padded to the next size; sizes of decode
rows with adapters are wider apart than those without, since each comes in several ways.
"""

from collections.abc import Iterator
from typing import NamedTuple

from services.generator.core.plan import StepPlan
from services.generator.core.slots import NO_ADAPTER
from services.generator.core.specs import SchedulerLimits
from services.generator.runner.lora_shape import LoraShape, LoraShapes
from services.generator.runner.step_layout import StepShape, decode_shape

SMALL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
STEP_BEYOND = 64
"""Numbers of decode rows for which there are graphs, and beyond the last of them the step from one to the next."""

BASE_SIZES = (24, 48, 96)
"""Those of them that only steps without adapters have, unless it is the most rows there may be."""

PROMPT_SIZES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Tokens of steps that compute prompts, for which there are graphs."""

NUM_SMALL_SAMPLES = 4
"""Graphs by which is measured what each takes beside the memory that all share."""


class GraphSizes(NamedTuple):
    """Numbers of tokens, each in rising order.

    Attributes:
        decodes: of steps of decode rows alone.
        adapted_decodes: of those with adapters.
        prompts: of steps with rows that compute prompts.
    """

    decodes: list[int]
    adapted_decodes: list[int]
    prompts: list[int]

    def of(self, *, is_decode: bool, has_adapters: bool) -> list[int]:
        """One of the three."""
        if not is_decode:
            return self.prompts
        return self.adapted_decodes if has_adapters else self.decodes


class GraphSample(NamedTuple):
    """Some graphs to measure all by.

    Attributes:
        largest: of each kind; the others find memory for theirs in what these take.
        small: they take next to nothing of it, so that what they take is what any other graph does.
        num_others: graphs that are in neither.
    """

    largest: list[StepShape]
    small: list[StepShape]
    num_others: int


class GraphShapes:
    """All there are.

    Args:
        lora: how adapters of rows may be computed; None where there are none.

    Attributes:
        all: the largest first, so that the others find memory for theirs where graphs share it.
    """

    def __init__(self, limits: SchedulerLimits, lora: LoraShapes | None) -> None:
        self._limits = limits
        self._sizes = graph_sizes(limits)
        self._lora = lora
        self.all = sorted(self._shapes(), key=_weight, reverse=True)

    def of_plan(self, plan: StepPlan) -> StepShape | None:
        """The smallest that holds a plan; None where it fits none."""
        if plan.images is not None or len(plan.scored):
            return None  # a graph knows no images, and keeps no hidden states
        has_adapters = bool((plan.adapter_slots != NO_ADAPTER).any())
        sizes = self._sizes.of(is_decode=plan.is_decode, has_adapters=has_adapters)
        size = next((size for size in sizes if size >= plan.num_tokens), None)
        if size is None:
            return None
        lora = self._lora.of_plan(plan, size) if self._lora is not None and has_adapters else None
        return decode_shape(size, lora) if plan.is_decode else prompt_shape(size, self._limits, lora)

    def sample(self) -> GraphSample:
        """Some of all, by which `device_memory` measures what all take."""
        kinds = {(shape.num_decodes > 0, shape.lora is None): shape for shape in reversed(self.all)}
        largest = [shape for shape in self.all if shape in kinds.values()]
        others = [shape for shape in self.all if shape not in largest]
        adapted = [shape for shape in others if shape.lora is not None]  # of the most kernels
        small = (adapted or others)[-NUM_SMALL_SAMPLES:]
        return GraphSample(largest, small, len(others) - len(small))

    def _shapes(self) -> Iterator[StepShape]:
        yield from (decode_shape(size, None) for size in self._sizes.decodes)
        yield from (prompt_shape(size, self._limits, None) for size in self._sizes.prompts)
        if self._lora is None:
            return
        for size in self._sizes.adapted_decodes:
            yield from (decode_shape(size, way) for way in self._lora.ways(size, is_decode=True))
        for size in self._sizes.prompts:
            yield from (prompt_shape(size, self._limits, way) for way in self._lora.ways(size, is_decode=False))


def graph_sizes(limits: SchedulerLimits) -> GraphSizes:
    """Numbers of tokens that graphs are captured for."""
    most = limits.max_num_batched_tokens
    max_rows = min(limits.max_num_seqs, most)
    sizes = [*SMALL_SIZES, *range(SMALL_SIZES[-1] + STEP_BEYOND, max_rows, STEP_BEYOND)]
    smaller = [size for size in sizes if size < max_rows]
    return GraphSizes(
        [*smaller, max_rows],
        [*(size for size in smaller if size not in BASE_SIZES), max_rows],
        sorted({min(size, most) for size in PROMPT_SIZES}),
    )


def prompt_shape(num_tokens: int, limits: SchedulerLimits, lora: LoraShape | None) -> StepShape:
    """A step of `num_tokens` in rows of any length, each of which may sample."""
    num_rows = min(num_tokens, limits.max_num_seqs)
    return StepShape(num_tokens, 0, num_rows, num_rows, lora)


def _weight(shape: StepShape) -> tuple[int, int]:
    return shape.num_tokens, 0 if shape.lora is None else shape.lora.num_joined
