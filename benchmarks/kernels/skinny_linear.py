"""`skinny_linear` in the parts that the layers ask for, and `skinny_silu_mul`; projections of the Llama-3-8B shape."""

import torch

from benchmarks.kernels.lora_inputs import GROUPS
from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.reference import skinny_linear as reference
from services.generator.kernels.skinny_linear import MAX_GATED_ROWS, MAX_ROWS, num_parts, skinny_linear, skinny_silu_mul

BF16 = {"device": "cuda", "dtype": torch.bfloat16}


def points() -> Points:
    """One per projection and number of rows."""
    for num_rows in (1, 8, 32, MAX_ROWS, MAX_GATED_ROWS):
        yield _gated(num_rows)
        if num_rows <= MAX_ROWS:
            yield from (_in_parts(name, num_rows) for name in ("o", "down"))


def _in_parts(name: str, num_rows: int) -> Point:
    in_features, (out_features,) = GROUPS[name]
    x, weight = torch.randn(num_rows, in_features, **BF16), torch.randn(out_features, in_features, **BF16)
    parts = num_parts(num_rows, out_features, in_features)
    out = torch.empty(parts, num_rows, out_features, device="cuda", dtype=torch.float32 if parts > 1 else x.dtype)

    def call() -> None:
        skinny_linear(out, x, weight)

    def check() -> None:
        call()
        assert_near(out.float().sum(0), reference.skinny_linear(x, weight))

    about = {"projection": name, "rows": num_rows, "parts": parts}
    return Point("skinny_linear", about, call, check, x.nbytes + weight.nbytes + out.nbytes)


def _gated(num_rows: int) -> Point:
    in_features, slice_sizes = GROUPS["gate_up"]
    x, weight = torch.randn(num_rows, in_features, **BF16), torch.randn(sum(slice_sizes), in_features, **BF16)
    out = torch.empty(num_rows, slice_sizes[0], **BF16)

    def call() -> None:
        skinny_silu_mul(out, x, weight)

    def check() -> None:
        call()
        assert_near(out, reference.skinny_silu_mul(x, weight))

    about = {"projection": "gate_up", "rows": num_rows, "parts": 1}
    return Point("skinny_linear", about, call, check, x.nbytes + weight.nbytes + out.nbytes)
