"""The ways in which a step's adapters are computed: one for every plan, and a graph for every one."""

from itertools import pairwise, product

import numpy as np
import pytest

from services.generator.core.slots import NO_ADAPTER
from services.generator.runner.lora_shape import JOINED_RANKS, JOINED_TOKENS, LoraShapes
from services.generator.runner.model_runner import WARM_UP_SIZES
from tests.generator.plans import SizedPlan


def decodes(*slots: int) -> SizedPlan:
    return SizedPlan(np.array(slots, np.int32), is_decode=True)


@pytest.mark.parametrize("max_rank", [8, 16, 64, JOINED_RANKS + 1])
@pytest.mark.parametrize("num_slots", [1, 8, 16, 64, 200])
@pytest.mark.parametrize("is_decode", [True, False])
def test_every_mix_has_a_way_that_holds_its_slots_and_that_graphs_were_made_for(is_decode, num_slots, max_rank):
    shapes, rng = LoraShapes(num_slots, max_rank), np.random.default_rng(0)
    for num_rows in (1, 8, 64, JOINED_TOKENS, JOINED_TOKENS + 64):
        captured = set(shapes.ways(num_rows, is_decode=is_decode))
        for highest in {1, num_slots // 2 + 1, num_slots}:
            slots = rng.integers(-1, highest, rng.integers(1, num_rows + 1)).astype(np.int32)
            shape = shapes.of_plan(SizedPlan(slots, is_decode), num_rows)
            if (slots == NO_ADAPTER).all():
                assert shape is None
                continue
            assert shape in captured
            assert shape.num_joined == 0 or slots.max() < shape.num_joined <= num_slots
            assert shape.num_joined * max_rank <= JOINED_RANKS


def test_few_first_slots_are_not_charged_for_all():
    shapes = LoraShapes(64, 16)
    joined = [shapes.of_plan(decodes(-1, slot), 2).num_joined for slot in (0, 7, 8, 31, 32, 63)]
    assert joined == [8, 8, 32, 32, 64, 64]


def test_slots_beyond_the_room_in_the_product_have_a_kernel_of_their_own():
    shapes = LoraShapes(64, 64)
    joined = [shapes.of_plan(decodes(slot), 1).num_joined for slot in (0, 8, 15, 16)]
    assert joined == [8, 16, 16, 0]
    assert shapes.of_plan(decodes(0), JOINED_TOKENS + 1).num_joined == 0


@pytest.mark.parametrize(
    ("num_slots", "max_rank"), [(1, 16), (8, 16), (16, 64), (20, 64), (64, 16), (64, 64), (2, 2048)]
)
def test_kernels_are_warmed_up_in_every_way_that_a_step_launches_them(num_slots, max_rank):
    """What is joined is launched alike in all steps, and so warmed up in any."""
    shapes, warmed_joined = LoraShapes(num_slots, max_rank), set()
    for before, most in pairwise([0, *WARM_UP_SIZES]):
        ways = shapes.ways_between(before + 1, most)
        warmed = {way.chunk_size for way in ways if not way.num_joined}
        warmed_joined |= {way.chunk_size for way in ways if way.num_joined}
        launched = set()
        for num_tokens, is_decode in product(range(before + 1, most + 1), (True, False)):
            launched |= {(way.chunk_size, way.num_joined > 0) for way in shapes.ways(num_tokens, is_decode=is_decode)}
        assert {chunk_size for chunk_size, is_joined in launched if not is_joined} == warmed
        assert {chunk_size for chunk_size, is_joined in launched if is_joined} <= warmed_joined


def test_a_few_adapters_of_many_rows_are_all_that_a_small_bank_has_graphs_for():
    """128 rows of at most 2 adapters have 64 each, and so never a program per row."""
    assert [way.chunk_size for way in LoraShapes(2, 2048).ways(128, is_decode=True)] == [16, 64]
