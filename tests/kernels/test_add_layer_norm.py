"""`add_layer_norm` against its oracle, PyTorch's own norm, in fp64."""

import pytest
import torch

from shared.errors import InternalError
from shared.modeling.kernels.add_layer_norm import add_layer_norm
from shared.modeling.kernels.reference import add_layer_norm as reference
from tests.kernels.guards import Guarded
from tests.kernels.tolerances import assert_close

EPS = 1e-5


def inputs(num_rows: int, width: int, place: tuple[str, torch.dtype]) -> tuple[torch.Tensor, ...]:
    """x, y, weight, bias; rows that are far from 0, where a variance by sums of squares would be lost."""
    device, dtype = place
    shapes = ((num_rows, width), (num_rows, width), (width,), (width,))
    x, y, weight, bias = (torch.randn(shape) for shape in shapes)
    return tuple(tensor.to(device, dtype) for tensor in (x + 20, y, weight, bias))


@pytest.mark.parametrize(("num_rows", "width"), [(1, 2), (3, 768), (2, 127), (17, 129), (1, 4096)])
def test_ragged_sizes(num_rows, width, place):
    x, y, weight, bias = inputs(num_rows, width, place)
    exact = reference.add_layer_norm(x.double(), y.double(), weight.double(), bias.double(), EPS)
    guarded = Guarded(num_rows, width, dtype=x.dtype, device=place[0])
    add_layer_norm(guarded.tensor, x, y, weight, bias, EPS)
    assert_close(guarded.tensor, exact.float(), slack=4.0)  # a mean of 20 takes four bits of each fp32 term
    guarded.assert_untouched(torch.zeros_like(x, dtype=torch.bool))


def test_the_output_may_be_an_input(place):
    x, y, weight, bias = inputs(5, 96, place)
    expected = torch.empty_like(x)
    add_layer_norm(expected, x, y, weight, bias, EPS)
    add_layer_norm(x, x, y, weight, bias, EPS)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("wrong", [{"y": torch.ones(2, 7)}, {"bias": torch.ones(4)}, {"x": torch.ones(8, 2).t()}])
def test_what_does_not_fit_is_refused(wrong):
    tensors = {name: torch.ones(2, 8) for name in ("out", "x", "y")} | {n: torch.ones(8) for n in ("weight", "bias")}
    with pytest.raises(InternalError, match="bug"):
        add_layer_norm(**(tensors | wrong), eps=EPS)
