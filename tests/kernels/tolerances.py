"""How far a kernel may be from its fp32 oracle, for each dtype: the one table.

The oracle gets the same rounded inputs in fp32, so what is left is the order of sums and one rounding of the output.
"""

import torch
from torch import Tensor

RELATIVE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest difference, as a share of the largest value of the oracle: some units in the last place of the dtype."""


def assert_close(out: Tensor, expected: Tensor, *, slack: float = 1.0) -> None:
    """`out` is the oracle's `expected` within the tolerance of `out`'s dtype.

    Args:
        slack: factor on the tolerance, for an operation whose intermediate is rounded too.
    """
    limit = RELATIVE[out.dtype] * slack * max(expected.abs().max().item(), 1e-30)
    difference = (out.float() - expected.float()).abs().max().item()
    assert difference <= limit, f"differs by {difference}, at most {limit}"  # False for NaN as well
