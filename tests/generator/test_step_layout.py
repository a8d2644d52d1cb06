"""The packed buffer of a step: positions on three axes, for text and images, and for the padding of a graph."""

import numpy as np
import pytest
import torch

from services.generator.core.plan import NUM_AXES
from services.generator.runner.step_layout import StepLayout, StepShape, decode_shape
from tests.generator.test_images import PLACEHOLDER, make_engine, prompt_with

SPARE_ROW = 9


@pytest.fixture
def plan():
    """Decode steps of a prompt of text, at position 2, and of one whose image of six rows has a grid of 2 x 3, at position 8."""
    engine = make_engine(has_axes=True, max_in_flight=1)
    engine.submit([1, 2], 3)
    ids, (image,) = prompt_with([1, (0, 6), 2])
    engine.submit(ids, 3, images=(type(image)(1, (1, 2, 3), image.digest, image.pixels),))
    engine.step()
    plan = engine.scheduler.schedule()
    assert plan.num_computed_tokens.tolist() == [2, 8]
    assert PLACEHOLDER not in plan.token_ids
    return plan


def test_three_axes_are_packed_for_a_larger_graph(plan):
    layout = StepLayout(decode_shape(4, None), 0, 0, SPARE_ROW, has_axes=True)
    arrays = layout.split(torch.from_numpy(layout.pack(plan)))
    assert arrays.positions.tolist() == [2, 8, 0, 0]
    # The image begins at 1 and is three wide, so that the text behind it is at 4 and the next token at 5.
    assert arrays.rope_positions.view(NUM_AXES, -1).tolist() == [[2, 5, 0, 0]] * 3


def test_one_axis_takes_no_room(plan):
    one, three = (StepLayout(decode_shape(4, None), 0, 0, SPARE_ROW, has_axes=has_axes) for has_axes in (False, True))
    assert len(three.pack(plan)) - len(one.pack(plan)) == NUM_AXES * 4
    assert len(one.split(one.pack(plan)).rope_positions) == 0
    assert np.array_equal(three.pack_padding()[: len(one.pack_padding())], one.pack_padding())


def test_text_alone_stands_at_its_place_on_all_axes():
    engine = make_engine(has_axes=True)
    engine.submit([1, 2, 3], 2)
    plan = engine.scheduler.schedule()
    assert plan.rope_positions is None
    layout = StepLayout(StepShape(4, 0, 1, 1, None), 0, 0, SPARE_ROW, has_axes=True)
    arrays = layout.split(layout.pack(plan))
    assert arrays.rope_positions.reshape(NUM_AXES, -1).tolist() == [[0, 1, 2, 0]] * 3
