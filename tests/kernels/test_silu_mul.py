"""`silu_mul` against its oracle, and the oracle against the formula in fp64."""

import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.reference import silu_mul as reference
from services.generator.kernels.silu_mul import silu_mul
from tests.kernels.guards import Guarded
from tests.kernels.replay import capture
from tests.kernels.tolerances import assert_close


def test_the_oracle_against_the_formula():
    gate, up = torch.randn(2, 5, 33)
    expected = gate.double() / (1 + torch.exp(-gate.double())) * up.double()
    assert (reference.silu_mul(torch.cat([gate, up], dim=1)) - expected).abs().max() < 1e-6


@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (3, 1023), (2, 1024), (5, 1025), (2, 2500)])
def test_ragged_sizes(num_rows, width, place):
    device, dtype = place
    gate_up = (torch.randn(num_rows, 2 * width) * 4).to(device, dtype)
    guarded = Guarded(num_rows, width, dtype=dtype, device=device)
    silu_mul(guarded.tensor, gate_up)
    guarded.assert_untouched(torch.zeros(num_rows, width, dtype=torch.bool))
    assert_close(guarded.tensor, reference.silu_mul(gate_up.float()))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # infinity is right there: x / inf is 0
def test_extreme_gates_are_finite(place):
    device, dtype = place
    gate_up = torch.tensor([[-1e4, 1e4, -90.0, 0.0, 1, 1, 1, 1]]).to(device, dtype)
    out = torch.empty(1, 4, dtype=dtype, device=device)
    silu_mul(out, gate_up)
    assert out.isfinite().all()
    assert_close(out, reference.silu_mul(gate_up.float()))


@pytest.mark.gpu
def test_a_graph_replays_with_other_values(cuda):
    gate_up = torch.randn(40, 2 * 14336, device=cuda, dtype=torch.bfloat16)
    out = torch.empty(40, 14336, device=cuda, dtype=torch.bfloat16)
    graph = capture(lambda: silu_mul(out, gate_up))
    gate_up.normal_()
    graph.replay()
    assert_close(out, reference.silu_mul(gate_up.float()))


def test_arguments_are_checked(place):
    device, dtype = place
    with pytest.raises(KernelArgumentError, match="gate_up has the shape"):
        silu_mul(torch.empty(2, 8, device=device, dtype=dtype), torch.empty(2, 15, device=device, dtype=dtype))
