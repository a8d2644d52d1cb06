"""The ways in which a step's adapters are computed: one for every plan, and a graph for every one."""

from dataclasses import dataclass

import numpy as np
import pytest

from services.generator.core.slots import NO_ADAPTER
from services.generator.runner.lora_shape import JOINED_RANKS, JOINED_TOKENS, LoraShapes


@dataclass
class Plan:
    """As much of a plan as is asked for."""

    adapter_slots: np.ndarray
    is_decode: bool


def decodes(*slots: int) -> Plan:
    return Plan(np.array(slots, np.int32), is_decode=True)


@pytest.mark.parametrize("max_rank", [8, 16, 64, JOINED_RANKS + 1])
@pytest.mark.parametrize("num_slots", [1, 8, 16, 64, 200])
@pytest.mark.parametrize("is_decode", [True, False])
def test_every_mix_has_a_way_that_holds_its_slots_and_that_graphs_were_made_for(is_decode, num_slots, max_rank):
    shapes, rng = LoraShapes(num_slots, max_rank), np.random.default_rng(0)
    for num_rows in (1, 8, 64, JOINED_TOKENS, JOINED_TOKENS + 64):
        captured = set(shapes.of_decodes(num_rows) if is_decode else shapes.of_prompts(num_rows))
        for highest in {1, num_slots // 2 + 1, num_slots}:
            slots = rng.integers(-1, highest, rng.integers(1, num_rows + 1)).astype(np.int32)
            shape = shapes.of_plan(Plan(slots, is_decode), num_rows)
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


def test_every_way_of_a_number_of_tokens_is_warmed_up():
    """With a kernel for the rank-r side and without, where a step may have either."""
    for shapes in (LoraShapes(16, 64), LoraShapes(64, 64), LoraShapes(2, 2 * JOINED_RANKS)):
        for num_tokens in (4, JOINED_TOKENS, 2048):
            warmed = {(shape.chunk_size, shape.num_joined > 0) for shape in shapes.of_tokens(num_tokens)}
            assert warmed >= {(shape.chunk_size, shape.num_joined > 0) for shape in shapes.of_decodes(num_tokens)}
