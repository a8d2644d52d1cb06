"""`add_layer_norm` as the encoders launch it, in place, rows of BERT-base and BERT-large."""

import torch

from benchmarks.kernels.measure import Point, Points, assert_near
from shared.modeling.kernels.add_layer_norm import add_layer_norm
from shared.modeling.kernels.reference import add_layer_norm as reference

EPS = 1e-12


def points() -> Points:
    """One per width and number of tokens."""
    for width in (768, 1024):
        for num_rows in (16, 512, 8192, 65536):
            yield _point(num_rows, width)


def _point(num_rows: int, width: int) -> Point:
    x, y = torch.randn(2, num_rows, width, device="cuda", dtype=torch.bfloat16)
    weight, bias = torch.randn(2, width, device="cuda", dtype=torch.bfloat16)

    def call() -> None:
        add_layer_norm(x, x, y, weight, bias, EPS)

    def check() -> None:
        expected = reference.add_layer_norm(x.float(), y.float(), weight.float(), bias.float(), EPS)
        call()
        assert_near(x, expected)

    return Point("add_layer_norm", {"rows": num_rows, "width": width}, call, check, 3 * x.nbytes)
