"""`sample` over the vocabulary of Llama 3, at temperature 0.8: all tokens, the likeliest by number, and by mass."""

import torch

from benchmarks.kernels.measure import Point, Points
from services.generator.kernels.reference import sample as reference
from services.generator.kernels.sample import sample

VOCAB_SIZE = 128_256
FILTERS = {"none": None, "top-k 50": (50, 1.0, 0.0), "top-p 0.95": (0, 0.95, 0.0), "all three": (1000, 0.9, 0.02)}
MAY_DIFFER = 0.02
"""Share of rows that may choose otherwise than the oracle: a number at the edge of a token may draw the next one."""


def points() -> Points:
    """One per filter and number of rows."""
    for name in FILTERS:
        for num_rows in (1, 64, 256):
            yield _point(num_rows, name)


def _point(num_rows: int, name: str) -> Point:
    logits = torch.randn(num_rows, VOCAB_SIZE, device="cuda", dtype=torch.bfloat16)
    temperature = torch.full((num_rows,), 0.8, device="cuda")
    uniforms = torch.rand(num_rows, device="cuda", dtype=torch.float64)
    ids = torch.full((num_rows,), -1, device="cuda", dtype=torch.int64)
    values = FILTERS[name]
    filters = None
    if values is not None:
        top_k = torch.full((num_rows,), values[0], device="cuda", dtype=torch.int64)
        filters = top_k, torch.full_like(temperature, values[1]), torch.full_like(temperature, values[2])

    def call() -> None:
        sample(ids, logits, temperature, filters, uniforms)

    def check() -> None:
        call()
        is_same = ids == reference.sample(logits, temperature, filters, uniforms)
        torch.testing.assert_close(is_same.double().mean().item(), 1.0, atol=MAY_DIFFER, rtol=0)

    return Point("sample", {"rows": num_rows, "filters": name}, call, check, logits.nbytes + ids.nbytes)
