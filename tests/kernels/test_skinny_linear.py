"""`skinny_linear` and `skinny_silu_mul` against their oracles: ragged sizes, any number of parts, guards, replay of a graph."""

import pytest
import torch

from services.generator.kernels.arguments import KernelArgumentError
from services.generator.kernels.reference import skinny_linear as reference
from services.generator.kernels.skinny_linear import (
    MAX_PARTS,
    MAX_ROWS,
    can_gate,
    num_parts,
    skinny_linear,
    skinny_silu_mul,
)
from tests.kernels.guards import Guarded
from tests.kernels.replay import capture
from tests.kernels.tolerances import assert_close

SIZES = [(1, 8, 8), (3, 72, 200), (17, 130, 256), (40, 64, 520)]
"""Rows, columns, width."""


def inputs(num_rows: int, num_columns: int, width: int, place: tuple[str, torch.dtype]) -> tuple[torch.Tensor, ...]:
    """x, weight, bias."""
    device, dtype = place
    shapes = ((num_rows, width), (num_columns, width), (num_columns,))
    return tuple(torch.randn(shape).to(device, dtype) for shape in shapes)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(("num_rows", "num_columns", "width"), SIZES)
def test_ragged_sizes(num_rows, num_columns, width, parts, has_bias, place):
    x, weight, bias = inputs(num_rows, num_columns, width, place)
    bias = bias if has_bias else None
    dtype = x.dtype if parts == 1 else torch.float32
    guarded = Guarded(parts, num_rows, num_columns, dtype=dtype, device=place[0])
    skinny_linear(guarded.tensor, x, weight, bias)
    guarded.assert_untouched(torch.zeros(guarded.tensor.shape, dtype=torch.bool))
    assert_close(guarded.tensor.sum(0), reference.skinny_linear(x, weight, bias), slack=4)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_rows", "num_columns", "width"), SIZES)
def test_gate_and_up(num_rows, num_columns, width, has_bias, place):
    x, weight, bias = inputs(num_rows, 2 * num_columns, width, place)
    bias = bias if has_bias else None
    guarded = Guarded(num_rows, num_columns, dtype=x.dtype, device=place[0])
    skinny_silu_mul(guarded.tensor, x, weight, bias)
    guarded.assert_untouched(torch.zeros(guarded.tensor.shape, dtype=torch.bool))
    assert_close(guarded.tensor, reference.skinny_silu_mul(x, weight, bias), slack=4)


def test_columns_of_wider_tensors(place):
    x, weight, _ = inputs(5, 40, 96, place)
    out = torch.empty(1, 5, 40, dtype=x.dtype, device=place[0])
    skinny_linear(out, x[:, :64], weight[:, :64])
    assert_close(out[0], reference.skinny_linear(x[:, :64], weight[:, :64]), slack=2)


def test_no_rows_are_no_work(place):
    x, weight, bias = inputs(0, 40, 64, place)
    skinny_linear(x.new_empty(1, 0, 40), x, weight, bias)
    skinny_silu_mul(x.new_empty(0, 20), x, weight, bias)


@pytest.mark.parametrize(
    ("num_rows", "num_columns", "width", "parts"),
    [
        (1, 4096, 14336, 2),
        (32, 4096, 4096, 2),
        (64, 4096, 4096, 2),
        (64, 4608, 4096, 3),
        (8, 4608, 4096, 1),
        (8, 6528, 4096, 1),
        (8, 9216, 4096, 0),
        (64, 28672, 4096, 1),
        (8, 2048, 8192, 4),
        (8, 896, 4864, 0),
        (8, 2048, 256, 0),
        (65, 4096, 4096, 0),
        (8, 4096, 4100, 0),
        (0, 128_256, 4096, 0),
    ],
)
def test_programs_of_all_parts_fill_the_gpu_or_the_library_does(num_rows, num_columns, width, parts):
    assert num_parts(num_rows, num_columns, width) == parts <= MAX_PARTS


@pytest.mark.parametrize(
    ("num_rows", "num_columns", "width", "can"),
    [
        (1, 14336, 4096, True),
        (128, 14336, 4096, True),
        (129, 14336, 4096, False),
        (64, 8192, 2048, True),
        (8, 512, 4096, False),
        (8, 14336, 4100, False),
        (0, 14336, 4096, False),
    ],
)
def test_where_gate_and_up_are_one_product_with_their_activation(num_rows, num_columns, width, can):
    assert can_gate(num_rows, num_columns, width) == can


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 16, 33, 64, 100])
def test_a_graph_replays_with_other_values(num_rows, cuda):
    x, weight, bias = inputs(num_rows, 4096, 1024, (cuda, torch.bfloat16))
    parts = torch.empty(2, num_rows, 4096, device=cuda)
    gated = torch.empty(num_rows, 2048, dtype=torch.bfloat16, device=cuda)

    few = min(num_rows, MAX_ROWS)

    def both() -> None:
        skinny_linear(parts[:, :few], x[:few], weight, bias)
        skinny_silu_mul(gated, x, weight, bias)

    graph = capture(both)
    x.normal_()
    graph.replay()
    assert_close(parts.sum(0)[:few], reference.skinny_linear(x[:few], weight, bias), slack=4)
    assert_close(gated, reference.skinny_silu_mul(x, weight, bias), slack=4)


def test_arguments_are_checked(place):
    x, weight, bias = inputs(4, 40, 96, place)
    out = torch.empty(1, 4, 40, dtype=x.dtype, device=place[0])
    with pytest.raises(KernelArgumentError, match="out has the shape"):
        skinny_linear(out[:, :3], x, weight)
    with pytest.raises(KernelArgumentError, match="x has the shape"):
        skinny_linear(out, x[:, :-1], weight)
    with pytest.raises(KernelArgumentError, match="bias has the shape"):
        skinny_linear(out, x, weight, bias[1:])
    with pytest.raises(KernelArgumentError, match="is needed"):
        skinny_linear(out.double(), x, weight)
    with pytest.raises(KernelArgumentError, match="out has the shape"):
        skinny_silu_mul(out[0], x, weight)
    with pytest.raises(KernelArgumentError, match="rows of x: 65; at most 64"):
        skinny_linear(out.new_empty(1, 65, 40), x.new_empty(65, 96), weight)
    with pytest.raises(KernelArgumentError, match="rows of weight must begin at multiples of 16 bytes"):
        skinny_linear(out, x[:, :88], weight[:, 1:89])
    with pytest.raises(KernelArgumentError, match="rows of x must begin at multiples of 16 bytes"):
        skinny_linear(out, torch.empty(4, 97, dtype=x.dtype, device=x.device)[:, :96], weight)
