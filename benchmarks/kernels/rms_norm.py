"""`rms_norm` with a residual, rows 4096 wide."""

import torch

from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.reference import rms_norm as reference
from services.generator.kernels.rms_norm import rms_norm


def points() -> Points:
    """One per number of rows."""
    for num_rows in (1, 64, 256, 8192):
        yield _point(num_rows)


def _point(num_rows: int) -> Point:
    x, residual = torch.randn(2, num_rows, 4096, device="cuda", dtype=torch.bfloat16)
    weight, out = torch.randn(4096, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)

    def check() -> None:
        expected, _ = reference.rms_norm((x.float() + residual.float()).bfloat16().float(), weight.float(), 1e-5)
        rms_norm(out, x, weight, 1e-5, residual)
        assert_near(out, expected)

    return Point("rms_norm", {"rows": num_rows}, lambda: rms_norm(out, x, weight, 1e-5, residual), check, 4 * x.nbytes)
