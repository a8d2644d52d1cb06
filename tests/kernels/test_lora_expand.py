"""Both ways of `lora_expand` against the oracle: ragged sizes, all popularities, guards, replay of a graph."""

import dataclasses

import numpy as np
import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.lora_delta import MAX_RANK_BLOCK
from services.generator.kernels.lora_expand import lora_expand
from services.generator.kernels.reference import lora as reference
from tests.kernels.guards import SENTINEL, Guarded
from tests.kernels.lora_cases import CHUNK_OF, LoraCase, beside, finite, make_case, make_parts, renew
from tests.kernels.replay import capture
from tests.kernels.test_lora_segments import SHAPES, popularity
from tests.kernels.tolerances import assert_close

ROWS = {"rows": 6, "tiles": 19}


def expand(way: str, y: torch.Tensor, h: torch.Tensor, case: LoraCase) -> None:
    """`h` is [parts, T, slices, R], or [1, T, slots, slices, R]."""
    h = h if h.dim() == 5 else h[:, :, None]
    adapters = (case.b, case.ranks, case.scales, *case.segments.arrays)
    lora_expand(y, h, *adapters, chunk_size=CHUNK_OF[way], slice_sizes=case.slice_sizes)


def oracle(y: torch.Tensor, h: torch.Tensor, case: LoraCase) -> torch.Tensor:
    out = y.float().clone()
    reference.lora_expand(
        out,
        h.sum(0).where(case.ranks_of_rows(), 0),
        finite(case.b),
        case.ranks,
        case.scales,
        case.groups,
        case.slice_sizes,
    )
    return out


def slack_of(dtype: torch.dtype) -> float:
    """fp32 takes exact products; the others multiply in tf32, within their own rounding."""
    return 4.0 if dtype == torch.float32 else 1.0


def check(way: str, case: LoraCase, parts: int) -> None:
    h = make_parts(case, parts)
    guarded = Guarded(*case.y.shape, dtype=case.y.dtype, device=case.y.device.type)
    guarded.tensor[case.has_adapter] = case.y[case.has_adapter]
    expected = oracle(guarded.tensor, h, case)
    expand(way, guarded.tensor, h, case)
    guarded.assert_untouched(~case.has_adapter)
    rows = case.has_adapter
    if bool(rows.any()):
        assert_close(guarded.tensor[rows].to(case.b.dtype), expected[rows], slack=slack_of(case.b.dtype))


@pytest.mark.parametrize("way", ["rows", "tiles"])
@pytest.mark.parametrize("shape", SHAPES)
def test_popularities(shape, way, place):
    check(way, make_case(shape, ROWS[way], 4, (40, 16, 16), place=place), parts=2)


@pytest.mark.parametrize("way", ["rows", "tiles"])
@pytest.mark.parametrize(
    ("num_rows", "slice_sizes", "parts"), [(1, (1,), 1), (2, (257,), 3), (17, (127, 129), 1), (3, (300, 1, 5), 5)]
)
def test_ragged_sizes(num_rows, slice_sizes, parts, way, place):
    check(way, make_case("mixed", num_rows, 4, slice_sizes, place=place), parts)


@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_into_a_part_in_fp32(way, place):
    case = make_case("mixed", ROWS[way], 4, (40, 16), place=place)
    check(way, dataclasses.replace(case, y=case.y.float()), parts=2)


@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_a_bank_whose_width_is_no_multiple_of_8(way, place):
    check(way, make_case("mixed", 7, 4, (40, 16, 16), place=place, max_rank=21), parts=1)


@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_more_ranks_than_a_program_adds_in_one_turn(way, place):
    check(way, make_case("mixed", ROWS[way], 4, (40, 16, 16), place=place, max_rank=2 * MAX_RANK_BLOCK + 16), parts=2)


@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_a_slice_of_rank_0_is_not_touched(way, place):
    case = make_case("uniform", 9, 4, (40, 16, 16), place=place)
    renew(case, np.full(9, 3, np.int32))  # the slot that leaves the second slice alone
    y = torch.full_like(case.y, SENTINEL)
    expand(way, y, make_parts(case, 1), case)
    assert bool((y[:, 40:56] == SENTINEL).all())
    assert bool((y[:, :40] != SENTINEL).any())
    assert bool((y[:, 56:] != SENTINEL).any())


@pytest.mark.parametrize("way", ["rows", "tiles"])
@pytest.mark.parametrize("shape", SHAPES)
def test_intermediates_of_all_slots_beside_the_output(shape, way, place):
    case = make_case(shape, ROWS[way], 4, (40, 16, 16), place=place)
    h = make_parts(case, 1).to(case.y.dtype)
    y, h_of_slots = beside(case.y, h, case)
    expected = oracle(y, h.float(), case)
    expand(way, y, h_of_slots, case)
    assert torch.equal(y[~case.has_adapter], case.y[~case.has_adapter])
    assert_close(y, expected, slack=slack_of(case.y.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_a_graph_replays_with_other_adapters(way, cuda):
    case = make_case("distinct", 40, 4, (300, 100, 100), place=(cuda, torch.bfloat16))
    h, y, given = make_parts(case, 4), torch.empty_like(case.y), case.y.clone()
    graph = capture(lambda: expand(way, y, h, case))
    for shape in SHAPES:
        renew(case, popularity(shape, 40, 5, np.random.default_rng(1)))
        h.copy_(make_parts(case, 4))
        y.copy_(given)
        graph.replay()
        assert_close(y, oracle(given, h, case))


def test_arguments_are_checked(place):
    case = make_case("uniform", 3, 4, (40, 16, 16), place=place)
    h = make_parts(case, 1)
    with pytest.raises(KernelArgumentError, match="do not add up"):
        expand("rows", case.y, h, dataclasses.replace(case, slice_sizes=(40, 16, 15)))
    with pytest.raises(KernelArgumentError, match="y has the shape"):
        expand("rows", case.y[:, :-1], h, case)
    with pytest.raises(KernelArgumentError, match="h has the shape"):
        expand("tiles", case.y, h[:, :-1], case)
    with pytest.raises(KernelArgumentError, match=r"needed for all of.*'h': torch.int32"):
        expand("rows", case.y, h.nan_to_num().int(), case)
