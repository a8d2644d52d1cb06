"""Both ways of `lora_shrink` against the oracle: ragged sizes, all popularities, guards, replay of a graph."""

import dataclasses

import numpy as np
import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.lora_shrink import lora_shrink, num_parts
from services.generator.kernels.reference import lora as reference
from services.generator.runner.adapter_bank import SCRATCH_ROWS
from tests.kernels.guards import Guarded
from tests.kernels.lora_cases import CHUNK_OF, MAX_RANK, LoraCase, finite, make_case, renew
from tests.kernels.replay import capture
from tests.kernels.test_lora_segments import SHAPES, popularity
from tests.kernels.tolerances import assert_close

SLICES = (9, 4, 4)
ROWS = {"rows": 6, "tiles": 19}


def shrink(way: str, h: torch.Tensor, case: LoraCase) -> None:
    lora_shrink(h, case.x, case.a, case.ranks, *case.metadata(), chunk_size=CHUNK_OF[way])


def oracle(case: LoraCase) -> torch.Tensor:
    h = torch.zeros(len(case.x), len(SLICES), MAX_RANK, device=case.x.device)
    reference.lora_shrink(h, case.x.float(), finite(case.a), case.ranks, case.groups)
    return h


def check(way: str, case: LoraCase, parts: int) -> None:
    guarded = Guarded(parts, len(case.x), len(SLICES), MAX_RANK, dtype=torch.float32, device=case.x.device.type)
    shrink(way, guarded.tensor, case)
    is_used = case.ranks_of_rows()
    guarded.assert_untouched(~is_used.expand(parts, -1, -1, -1))
    # fp32 sums whatever the dtype of the inputs; only their order differs from the oracle's.
    assert_close(guarded.tensor.sum(0).where(is_used, 0), oracle(case), slack=4)


@pytest.mark.parametrize("way", ["rows", "tiles"])
@pytest.mark.parametrize("shape", SHAPES)
def test_popularities(shape, way, place):
    check(way, make_case(shape, ROWS[way], 70, SLICES, place=place), parts=2)


@pytest.mark.parametrize("way", ["rows", "tiles"])
@pytest.mark.parametrize(("num_rows", "in_features", "parts"), [(1, 1, 1), (2, 127, 3), (17, 129, 1), (3, 600, 5)])
def test_ragged_sizes(num_rows, in_features, parts, way, place):
    check(way, make_case("mixed", num_rows, in_features, SLICES, place=place), parts)


@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_rows_of_a_wider_tensor(way, place):
    case = make_case("uniform", 3, 70, SLICES, place=place)
    wide = torch.full((3, 100), torch.nan, device=case.x.device, dtype=case.x.dtype)
    wide[:, :70] = case.x
    h = torch.zeros(1, 3, len(SLICES), MAX_RANK, device=case.x.device)
    shrink(way, h, dataclasses.replace(case, x=wide[:, :70]))
    assert_close(h[0].where(case.ranks_of_rows(), 0), oracle(case), slack=4)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_a_graph_replays_with_other_adapters(way, cuda):
    case = make_case("distinct", 40, 300, SLICES, place=(cuda, torch.bfloat16))
    h = torch.zeros(4, 40, len(SLICES), MAX_RANK, device=cuda)
    graph = capture(lambda: shrink(way, h, case))
    for shape in SHAPES:
        renew(case, popularity(shape, 40, 5, np.random.default_rng(1)))
        case.x.normal_()
        h.zero_()
        graph.replay()
        assert_close(h.sum(0), oracle(case), slack=4)


def test_arguments_are_checked(place):
    case = make_case("uniform", 3, 70, SLICES, place=place)
    h = torch.zeros(1, 3, len(SLICES), MAX_RANK, device=case.x.device)
    with pytest.raises(KernelArgumentError, match="a has the shape"):
        shrink("rows", h, dataclasses.replace(case, x=case.x[:, :-1]))
    with pytest.raises(KernelArgumentError, match="ranks is"):
        shrink("rows", h, dataclasses.replace(case, ranks=case.ranks.long()))
    with pytest.raises(KernelArgumentError, match="x must be contiguous"):
        shrink("tiles", h, dataclasses.replace(case, x=case.x.t().contiguous().t()))
    with pytest.raises(KernelArgumentError, match="row_slots has the shape"):
        shrink("rows", h[:, :2], dataclasses.replace(case, x=case.x[:2]))


@pytest.mark.parametrize("chunk_size", [1, 16])
def test_the_parts_of_all_rows_have_room_in_the_bank(chunk_size):
    for num_rows in range(1, 2 * SCRATCH_ROWS):
        assert num_parts(num_rows, 1 << 20, chunk_size) * num_rows <= max(num_rows, SCRATCH_ROWS)
