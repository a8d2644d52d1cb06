"""`step_indices` of decode steps, whose ids are on the device, and of a full step of prompts."""

import torch

from benchmarks.kernels.attention_inputs import BLOCK_SIZE
from benchmarks.kernels.measure import Point, Points
from services.generator.kernels.reference import step_indices as reference
from services.generator.kernels.step_indices import step_indices

CONTEXT, NUM_ROWS, ON_DEVICE, PADDING = 4096, 256, -1, -2
MARKS = {"block_size": BLOCK_SIZE, "on_device": ON_DEVICE, "padding": PADDING}


def points() -> Points:
    """One per number of tokens."""
    for num_tokens in (1, 64, 256, 8192):
        yield _point(num_tokens)


def _point(num_tokens: int) -> Point:
    int32 = {"device": "cuda", "dtype": torch.int32}
    is_decode = num_tokens <= NUM_ROWS
    given = torch.full((num_tokens,), ON_DEVICE, **int32) if is_decode else torch.arange(num_tokens, **int32)
    rows = torch.arange(num_tokens, **int32) % NUM_ROWS
    positions = torch.randint(CONTEXT, (num_tokens,), **int32)
    tables = torch.randint(1 << 16, (NUM_ROWS, CONTEXT // BLOCK_SIZE), **int32), torch.arange(NUM_ROWS, device="cuda")
    token_ids, slots = torch.empty(2, num_tokens, device="cuda", dtype=torch.int64)

    def call() -> None:
        step_indices(token_ids, slots, given, positions, rows, *tables, **MARKS)

    def check() -> None:
        call()
        torch.testing.assert_close((token_ids, slots), reference.step_indices(given, positions, rows, *tables, **MARKS))

    num_bytes = 3 * given.nbytes + num_tokens * (4 + 8 * is_decode) + token_ids.nbytes + slots.nbytes
    return Point("step_indices", {"tokens": num_tokens}, call, check, num_bytes)
