"""`rms_norm` against its oracle, and the oracle against PyTorch's own norm."""

import pytest
import torch
from torch.nn import functional

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.reference import rms_norm as reference
from services.generator.kernels.rms_norm import rms_norm
from tests.kernels.guards import Guarded
from tests.kernels.replay import capture
from tests.kernels.tolerances import assert_close

EPS = 1e-5


def inputs(num_rows: int, width: int, place: tuple[str, torch.dtype]) -> tuple[torch.Tensor, ...]:
    """x, weight, residual."""
    device, dtype = place
    shapes = ((num_rows, width), (width,), (num_rows, width))
    return tuple(torch.randn(shape).to(device, dtype) for shape in shapes)


def test_the_oracle_against_pytorch():
    x, weight, residual = inputs(5, 48, ("cpu", torch.float32))
    expected = functional.rms_norm((x + residual).double(), (48,), weight.double(), EPS)
    out, total = reference.rms_norm(x, weight, EPS, residual)
    assert (out - expected).abs().max() < 1e-5
    assert torch.equal(total, x + residual)


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (3, 576), (2, 127), (17, 129), (1, 4096)])
def test_ragged_sizes(num_rows, width, has_residual, place):
    x, weight, residual = inputs(num_rows, width, place)
    # The oracle in fp32 on the sum that is rounded as the kernel's is.
    total = (x.float() + residual.float()).to(x.dtype) if has_residual else x
    expected, _ = reference.rms_norm(total.float(), weight.float(), EPS)
    given, guarded = x.clone(), Guarded(num_rows, width, dtype=x.dtype, device=place[0])
    rms_norm(guarded.tensor, x, weight, EPS, residual if has_residual else None)
    guarded.assert_untouched(torch.zeros_like(x, dtype=torch.bool))
    assert_close(guarded.tensor, expected)
    assert torch.equal(x, given)
    if has_residual:
        assert torch.equal(residual, total)


@pytest.mark.parametrize(("num_parts", "num_rows", "width"), [(1, 3, 129), (2, 1, 1), (3, 17, 40), (4, 2, 576)])
def test_parts_in_fp32_that_are_columns_of_a_wider_tensor(num_parts, num_rows, width, place):
    device, dtype = place
    _, weight, residual = inputs(num_rows, width, place)
    parts = torch.randn(num_parts, num_rows, width + 3).to(device)[:, :, :width]
    total = (parts.sum(0).double() + residual.double()).to(dtype)
    expected, _ = reference.rms_norm(total.float(), weight.float(), EPS)
    guarded = Guarded(num_rows, width, dtype=dtype, device=device)
    rms_norm(guarded.tensor, parts, weight, EPS, residual)
    guarded.assert_untouched(torch.zeros(num_rows, width, dtype=torch.bool))
    assert_close(guarded.tensor, expected, slack=2)  # a sum in another order may be rounded to the neighbour
    assert_close(residual, total)


def test_part_of_a_wider_tensor_and_in_place(place):
    x, weight, _ = inputs(4, 96, place)
    expected, _ = reference.rms_norm(x[:, :60].float(), weight[:60].float(), EPS)
    beside = x[:, 60:].clone()
    rms_norm(x[:, :60], x[:, :60], weight[:60], EPS)
    assert_close(x[:, :60], expected)
    assert torch.equal(x[:, 60:], beside)


@pytest.mark.gpu
def test_a_graph_replays_with_other_values(cuda):
    x, weight, residual = inputs(40, 4096, (cuda, torch.bfloat16))
    out = torch.empty_like(x)
    graph = capture(lambda: rms_norm(out, x, weight, EPS, residual))
    x.normal_()
    residual.normal_()
    total = (x.float() + residual.float()).bfloat16()
    graph.replay()
    assert_close(out, reference.rms_norm(total.float(), weight.float(), EPS)[0])
    assert torch.equal(residual, total)


def test_arguments_are_checked(place):
    x, weight, residual = inputs(4, 96, place)
    with pytest.raises(KernelArgumentError, match="weight has the shape"):
        rms_norm(x, x, weight[:-1], EPS)
    with pytest.raises(KernelArgumentError, match="residual has the shape"):
        rms_norm(x, x, weight, EPS, residual[:2])
    with pytest.raises(KernelArgumentError, match="is needed for all of"):
        rms_norm(x.double(), x, weight, EPS)
