"""`rope_kv_write` on the Llama-3-8B shape."""

import torch

from benchmarks.kernels.attention_inputs import DIM, HEADS, KV_HEADS
from benchmarks.kernels.measure import Point, Points, assert_near
from services.generator.kernels.reference import rope_kv_write as reference
from services.generator.kernels.rope_kv_write import rope_kv_write


def points() -> Points:
    """One per number of tokens."""
    for num_tokens in (1, 64, 256, 8192):
        yield _point(num_tokens)


def _point(num_tokens: int) -> Point:
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    qkv = torch.randn(num_tokens, (HEADS + 2 * KV_HEADS) * DIM, **bf16)
    rotated = torch.empty(num_tokens, HEADS + KV_HEADS, DIM, **bf16)
    keys, values = torch.zeros(2, 2 * num_tokens, KV_HEADS, DIM, **bf16)
    table = torch.randn(num_tokens, DIM, device="cuda")
    slots = torch.randperm(2 * num_tokens, device="cuda")[:num_tokens]

    def call() -> None:
        rope_kv_write(rotated, keys, values, qkv, table, slots)

    def check() -> None:
        call()
        expected = [torch.zeros_like(each, dtype=torch.float32) for each in (rotated, keys, values)]
        reference.rope_kv_write(*expected, qkv.float(), table, slots)
        for out, wanted in zip((rotated, keys, values), expected, strict=True):
            assert_near(out, wanted)

    return Point("rope_kv_write", {"tokens": num_tokens}, call, check, 2 * qkv.nbytes + table.nbytes)
