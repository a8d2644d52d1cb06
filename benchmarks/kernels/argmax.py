"""`argmax` over the vocabulary of Llama 3."""

import torch

from benchmarks.kernels.measure import Point, Points
from services.generator.kernels.argmax import argmax

VOCAB_SIZE = 128_256


def points() -> Points:
    """One per number of rows."""
    for num_rows in (1, 64, 256):
        yield _point(num_rows)


def _point(num_rows: int) -> Point:
    logits = torch.randn(num_rows, VOCAB_SIZE, device="cuda", dtype=torch.bfloat16)
    ids = torch.full((num_rows,), -1, device="cuda", dtype=torch.int64)
    every_id = torch.arange(VOCAB_SIZE, device="cuda")

    def check() -> None:
        argmax(ids, logits)
        is_highest = logits == logits.amax(dim=1, keepdim=True)  # in bf16 several are
        torch.testing.assert_close(ids, torch.where(is_highest, every_id, VOCAB_SIZE).amin(dim=1))

    return Point("argmax", {"rows": num_rows}, lambda: argmax(ids, logits), check, logits.nbytes + ids.nbytes)
