"""A projection of few rows left in parts, which an adapter is added to and a norm sums, against the formula in fp64.

In a whole tiny model there is one part always: its products have too few columns for more.
"""

import os

import pytest
import torch

from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.forward_batch import AdapterRows
from shared.modeling.decoder import Linear, Norm
from tests.kernels.lora_cases import CHUNK_OF, NUM_SLOTS, make_case
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="runs with TRITON_INTERPRET=1")

WIDTH, SIZE, EPS = 304, 40, 1e-5
PLACE = ("cpu", torch.float16)


def delta_of(case):
    """What its adapter adds to each row, in fp64."""
    deltas = torch.zeros(len(case.x), SIZE, dtype=torch.float64)
    for row, slot in enumerate(case.segments.row_slots.tolist()):
        if slot >= 0:
            rank = int(case.ranks[slot, 0])
            a, b = case.a[slot, 0, :rank].double(), case.b[slot, :, :rank].double()
            deltas[row] = case.scales[slot, 0].double() * (b @ (a @ case.x[row].double()))
    return deltas


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("way", "num_joined"), [(None, 0), ("rows", 0), ("tiles", 0), ("rows", NUM_SLOTS), ("tiles", NUM_SLOTS)]
)
def test_the_sum_of_parts_adapter_and_residual_and_its_norm(way, num_joined, has_bias, num_parts, monkeypatch):
    from services.generator.kernels import skinny_linear
    from services.generator.layers.triton_kernels import TritonKernels

    monkeypatch.setattr(skinny_linear, "num_parts", lambda *_sizes: num_parts)
    torch.manual_seed(0)
    case = make_case("mixed", 6, WIDTH, (SIZE,), place=PLACE)
    base, bias, norm = (torch.randn(shape).half() for shape in ((SIZE, WIDTH), (SIZE,), (SIZE,)))
    base /= WIDTH**0.5
    weight = torch.cat([base, case.a.view(-1, WIDTH)])
    joined = Linear(weight, torch.cat([bias, bias.new_zeros(len(weight) - SIZE)]) if has_bias else None)
    scratch = torch.full((64 * case.a.shape[2],), torch.nan)
    group = AdapterGroup(case.a, case.b, case.ranks, case.scales, joined, scratch, (SIZE,))
    rows = None if way is None else AdapterRows(case.segments, CHUNK_OF[way], num_joined, [])

    total = case.y.double() + case.x.double() @ base.double().T + (bias.double() if has_bias else 0)
    total = (total if way is None else total + delta_of(case)).half()
    wide = total.double()
    normed = wide / (wide.square().mean(dim=1, keepdim=True) + EPS).sqrt() * norm.double()

    projection = Linear(base, bias if has_bias else None)
    out = TritonKernels().project_norm(projection, case.x, case.y.clone(), Norm(norm, EPS), group, rows)
    assert_close(out[0], total, slack=2)
    assert_close(out[1], normed, slack=2)


def test_a_step_that_samples_nothing_has_logits_of_no_rows():
    """Of a prompt that is longer than a step; the vocabulary is wide enough for products of few rows."""
    from services.generator.layers.triton_kernels import TritonKernels

    head = Linear(torch.randn(8448, 64).half())
    assert TritonKernels().project(head, head.weight.new_empty(0, 64), None, None).shape == (0, 8448)
