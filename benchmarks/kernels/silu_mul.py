"""`silu_mul`, MLP 14336 wide."""

import torch

from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.reference import silu_mul as reference
from services.generator.kernels.silu_mul import silu_mul


def points() -> Points:
    """One per number of rows."""
    for num_rows in (1, 64, 256, 8192):
        yield _point(num_rows)


def _point(num_rows: int) -> Point:
    gate_up = torch.randn(num_rows, 2 * 14336, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(num_rows, 14336, device="cuda", dtype=torch.bfloat16)

    def check() -> None:
        silu_mul(out, gate_up)
        assert_near(out, reference.silu_mul(gate_up.float()))

    return Point("silu_mul", {"rows": num_rows}, lambda: silu_mul(out, gate_up), check, gate_up.nbytes + out.nbytes)
