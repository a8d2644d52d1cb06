"""The torch LoRA against the formula written out row by row in fp64."""

import pytest
import torch

from services.generator.kernels.reference import lora
from services.generator.kernels.reference.lora import lora_expand, lora_shrink, slot_groups
from tests.kernels.lora_cases import MAX_RANK, finite, make_case
from tests.kernels.test_lora_segments import SHAPES

PLACE = ("cpu", torch.float32)


@pytest.mark.parametrize("padding", [0, 2])  # every slot alone, and together where that pays
@pytest.mark.parametrize("slice_sizes", [(24,), (9, 4, 4)])
@pytest.mark.parametrize("num_rows", [1, 8, 19])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_formula(shape, num_rows, slice_sizes, padding, monkeypatch):
    monkeypatch.setattr(lora, "MAX_PADDING", padding)
    torch.manual_seed(0)
    case = make_case(shape, num_rows, 12, slice_sizes, place=PLACE)
    h = torch.full((num_rows, len(slice_sizes), MAX_RANK), torch.nan)
    y = case.y.clone()
    lora_shrink(h, case.x, finite(case.a), case.ranks, case.groups)
    lora_expand(y, h, finite(case.b), case.ranks, case.scales, case.groups, slice_sizes)
    for t, slot in enumerate(case.segments.row_slots.tolist()):
        expected, start = case.y[t].double(), 0
        for s, size in enumerate(slice_sizes):
            rank, columns = int(case.ranks[slot, s]), slice(start, start + size)
            if slot >= 0:
                a, b = case.a[slot, s, :rank].double(), case.b[slot, columns, :rank].double()
                expected[columns] += case.scales[slot, s].double() * (b @ (a @ case.x[t].double()))
            start += size
        assert (y[t].double() - expected).abs().max() < 1e-5
    assert torch.equal(y[~case.has_adapter], case.y[~case.has_adapter])


def test_neighbouring_slots_are_one_group_and_far_ones_are_not():
    (group,) = slot_groups(torch.tensor([3, 2, -1, 3, 4, 4], dtype=torch.int32))
    assert (group.slots, group.num_places) == (slice(2, 5), 2)
    assert group.rows.tolist() == [1, 0, 3, 4, 5]
    assert group.places.tolist() == [0, 2, 3, 4, 5]
    far = slot_groups(torch.tensor([90, -1, 7, 90, 90], dtype=torch.int32))
    assert [group.slots for group in far] == [slice(7, 8), slice(90, 91)]
    assert far[0].rows == slice(2, 3)
    assert far[1].rows.tolist() == [0, 3, 4]


def test_one_adapter_is_a_view_of_the_rows():
    (group,) = slot_groups(torch.tensor([-1, 6, 6, 6], dtype=torch.int32))
    assert (group.slots, group.rows, group.places) == (slice(6, 7), slice(1, 4), None)
    assert slot_groups(torch.tensor([-1, -1], dtype=torch.int32)) == []
