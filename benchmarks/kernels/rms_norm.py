"""`rms_norm` with a residual, rows 4096 wide."""

import torch

from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.reference import rms_norm as reference
from services.generator.kernels.rms_norm import rms_norm


def points() -> Points:
    """One per number of rows, and of parts in fp32 where there are few."""
    for num_rows in (1, 64, 256, 8192):
        yield _point(num_rows, 1)
    for num_rows in (1, 64):
        for parts in (2, 4):
            yield _point(num_rows, parts)


def _point(num_rows: int, parts: int) -> Point:
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(parts, num_rows, 4096, device="cuda", dtype=torch.float32 if parts > 1 else torch.bfloat16)
    residual, weight = torch.randn(num_rows, 4096, **bf16), torch.randn(4096, **bf16)
    out = torch.empty_like(residual)

    def check() -> None:
        total = (x.float().sum(0) + residual.float()).bfloat16()
        expected, _ = reference.rms_norm(total.float(), weight.float(), 1e-5)
        rms_norm(out, x, weight, 1e-5, residual)
        assert_near(out, expected)

    def call() -> None:
        rms_norm(out, x, weight, 1e-5, residual)

    return Point("rms_norm", {"rows": num_rows, "parts": parts}, call, check, x.nbytes + 3 * out.nbytes)
