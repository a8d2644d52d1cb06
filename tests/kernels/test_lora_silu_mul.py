"""Both ways of `lora_silu_mul` against the oracles of its two halves: ragged sizes, all popularities, guards, replay of a graph."""

import numpy as np
import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.lora_delta import MAX_RANK_BLOCK
from services.generator.kernels.lora_silu_mul import lora_silu_mul
from services.generator.kernels.reference import lora as reference
from services.generator.kernels.reference.silu_mul import silu_mul
from tests.kernels.guards import Guarded
from tests.kernels.lora_cases import CHUNK_OF, LoraCase, beside, finite, make_case, make_parts, renew
from tests.kernels.replay import capture
from tests.kernels.test_lora_segments import SHAPES, popularity
from tests.kernels.tolerances import assert_close

ROWS = {"rows": 6, "tiles": 19}


def run(way: str, out: torch.Tensor, gate_up: torch.Tensor, h: torch.Tensor, case: LoraCase) -> None:
    adapters = (case.b, case.ranks, case.scales, *case.segments.arrays)
    lora_silu_mul(out, gate_up, h, *adapters, chunk_size=CHUNK_OF[way])


def oracle(gate_up: torch.Tensor, h: torch.Tensor, case: LoraCase) -> torch.Tensor:
    total, used = gate_up.float().clone(), h.float().sum(0).where(case.ranks_of_rows(), 0)
    reference.lora_expand(total, used, finite(case.b), case.ranks, case.scales, case.groups, case.slice_sizes)
    return silu_mul(total)


def check(way: str, case: LoraCase, parts: int) -> None:
    h = make_parts(case, parts)
    guarded = Guarded(len(case.y), case.slice_sizes[0], dtype=case.y.dtype, device=case.y.device.type)
    run(way, guarded.tensor, case.y, h[:, :, None], case)
    guarded.assert_untouched(torch.zeros(guarded.tensor.shape, dtype=torch.bool))
    assert_close(guarded.tensor, oracle(case.y, h, case), slack=4)


@pytest.mark.parametrize("way", ["rows", "tiles"])
@pytest.mark.parametrize("shape", SHAPES)
def test_popularities(shape, way, place):
    check(way, make_case(shape, ROWS[way], 4, (40, 40), place=place), parts=2)


@pytest.mark.parametrize("way", ["rows", "tiles"])
@pytest.mark.parametrize(("num_rows", "width", "parts"), [(1, 1, 1), (2, 257, 3), (17, 129, 1)])
def test_ragged_sizes(num_rows, width, parts, way, place):
    check(way, make_case("mixed", num_rows, 4, (width, width), place=place), parts)


@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_more_ranks_than_a_program_adds_in_one_turn(way, place):
    check(way, make_case("mixed", ROWS[way], 4, (40, 40), place=place, max_rank=2 * MAX_RANK_BLOCK + 16), parts=2)


@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_intermediates_of_all_slots_beside_the_output(way, place):
    case = make_case("mixed", ROWS[way], 4, (40, 40), place=place)
    h = make_parts(case, 1).to(case.y.dtype)
    gate_up, h_of_slots = beside(case.y, h, case)
    out = torch.empty(len(case.y), 40, dtype=case.y.dtype, device=case.y.device)
    run(way, out, gate_up, h_of_slots, case)
    assert_close(out, oracle(case.y, h, case), slack=4)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_a_graph_replays_with_other_adapters(way, cuda):
    case = make_case("distinct", 40, 4, (300, 300), place=(cuda, torch.bfloat16))
    h, out = make_parts(case, 4), torch.empty(40, 300, dtype=torch.bfloat16, device=cuda)
    graph = capture(lambda: run(way, out, case.y, h[:, :, None], case))
    for shape in SHAPES:
        renew(case, popularity(shape, 40, 5, np.random.default_rng(1)))
        h.copy_(make_parts(case, 4))
        graph.replay()
        assert_close(out, oracle(case.y, h, case), slack=4)


def test_arguments_are_checked(place):
    case = make_case("uniform", 3, 4, (40, 40), place=place)
    out = torch.empty(3, 40, dtype=case.y.dtype, device=case.y.device)
    h = make_parts(case, 1)[:, :, None]
    with pytest.raises(KernelArgumentError, match="gate_up has the shape"):
        run("rows", out[:, :-1], case.y, h, case)
    with pytest.raises(KernelArgumentError, match="h has the shape"):
        run("tiles", out, case.y, h[:, :, :, :1], case)
