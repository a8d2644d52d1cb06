"""Both linear layers against torch's own, over rows that straddle the layout's hint.

The choice between them is by device and dtype.
"""

import pytest
import torch
from torch.nn import functional

from shared.modeling.linear import PlainLinear, linear_backend, make_linear

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 2, 31, 511, 512, 513, 1500])
@pytest.mark.parametrize(("num_in", "num_out"), [(384, 1152), (33, 7), (1, 5)])
def test_equal_to_torch(rows: int, num_in: int, num_out: int) -> None:
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, num_in), torch.randn(num_out, num_in), torch.randn(num_out)
    expected = functional.linear(x, weight, bias)
    with torch.inference_mode():
        ours = make_linear(weight, bias)(x)
    assert ours.shape == expected.shape
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_other_dtypes_are_left_to_torch() -> None:
    layer = make_linear(torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16))
    assert isinstance(layer, PlainLinear)
    assert linear_backend(CPU, torch.bfloat16) == "torch"
    assert linear_backend(torch.device("meta"), torch.float32) == "torch"
