"""Which steps there are graphs for: every size once, every plan one that holds it, and a sample by which all are measured."""

from itertools import pairwise, product

import numpy as np
import pytest

from services.generator.core.specs import SchedulerLimits
from services.generator.runner.graph_shapes import BASE_SIZES, PROMPT_SIZES, GraphShapes, graph_sizes
from services.generator.runner.lora_shape import LoraShapes
from tests.generator.plans import SizedPlan


@pytest.mark.parametrize("max_tokens", [1, 16, 24, 512, PROMPT_SIZES[-1], 8192])
@pytest.mark.parametrize("max_rows", [1, 12, 24, 128, 200, 256])
def test_each_size_once_and_the_largest_is_the_limit(max_rows, max_tokens):
    sizes = graph_sizes(SchedulerLimits(max_rows, max_tokens, 64, 100))
    for each, largest in (
        (sizes.decodes, min(max_rows, max_tokens)),
        (sizes.adapted_decodes, min(max_rows, max_tokens)),
        (sizes.prompts, min(PROMPT_SIZES[-1], max_tokens)),
    ):
        assert all(smaller < larger for smaller, larger in pairwise(each))
        assert each[-1] == largest


@pytest.mark.parametrize("bank", [None, (1, 64), (8, 16), (64, 16), (64, 64)])
@pytest.mark.parametrize(("max_rows", "max_tokens"), [(256, 8192), (48, 200), (3, 4)])
def test_every_small_step_has_one_graph_that_holds_it(bank, max_rows, max_tokens):
    shapes = GraphShapes(SchedulerLimits(max_rows, max_tokens, 64, 100), None if bank is None else LoraShapes(*bank))
    assert len(set(shapes.all)) == len(shapes.all)
    rng = np.random.default_rng(0)
    for num_rows, highest, is_decode in product(
        range(1, max_rows + 1), (0, 1, 7, bank[0] if bank else 0), (True, False)
    ):
        highest = min(highest, bank[0] if bank else 0)
        slots = rng.integers(-1, highest, num_rows).astype(np.int32)
        num_tokens = num_rows if is_decode else int(rng.integers(num_rows, max_tokens + 1))
        shape = shapes.of_plan(SizedPlan(slots, is_decode, num_tokens))
        if shape is None:
            assert num_tokens > PROMPT_SIZES[-1]
            continue
        assert shape in shapes.all
        assert shape.num_tokens >= num_tokens
        assert shape.num_rows >= num_rows
        assert (shape.num_decodes > 0) == is_decode
        assert (shape.lora is None) == (slots < 0).all()


def test_decode_rows_with_adapters_take_the_next_of_fewer_sizes():
    shapes = GraphShapes(SchedulerLimits(256, 8192, 64, 100), LoraShapes(64, 16))
    for size in BASE_SIZES:
        plain, adapted = (shapes.of_plan(SizedPlan(np.full(size, slot, np.int32), True, size)) for slot in (-1, 5))
        assert plain.num_tokens == size < adapted.num_tokens


@pytest.mark.parametrize("bank", [None, (64, 16)])
@pytest.mark.parametrize(("max_rows", "max_tokens"), [(256, 8192), (2048, 8192), (3, 4), (1, 1)])
def test_the_sample_has_the_largest_of_each_kind_and_some_of_the_smallest(bank, max_rows, max_tokens):
    shapes = GraphShapes(SchedulerLimits(max_rows, max_tokens, 64, 100), None if bank is None else LoraShapes(*bank))
    sample = shapes.sample()
    sampled = {*sample.largest, *sample.small}
    assert len(sampled) + sample.num_others == len(shapes.all)
    assert sampled <= set(shapes.all)
    for is_decode, is_base in product((True, False), (True, False)):
        kind = [s for s in shapes.all if (s.num_decodes > 0, s.lora is None) == (is_decode, is_base)]
        assert max(kind, default=None, key=lambda shape: shape.num_tokens) in {*sample.largest, None}
    sizes = [shape.num_tokens for shape in shapes.all]
    assert sizes == sorted(sizes, reverse=True)
    if bank and max_rows > 3:
        assert all(shape.lora and shape.num_tokens <= 4 for shape in sample.small)
