"""Paged caches of the Llama-3-8B shape (32 heads, 8 key heads, width 128, blocks of 16) with scattered blocks."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

HEADS, KV_HEADS, DIM, BLOCK_SIZE = 32, 8, 128, 16


@dataclass(frozen=True)
class AttentionInputs:
    """Rows of one length, each with the same number of queries at its end."""

    query: Tensor
    out: Tensor
    keys: Tensor
    values: Tensor
    block_table: Tensor
    context_lens: Tensor

    def expected(self, row: int, num_queries: int) -> Tensor:
        """One row's attention by PyTorch's own, [Q, Hq, D] in fp32."""
        length = int(self.context_lens[row])
        slots = self._slots(row)
        query = self.query[row * num_queries :][:num_queries].float().transpose(0, 1)
        keys, values = (each[slots].float().transpose(0, 1) for each in (self.keys, self.values))
        positions = torch.arange(length - num_queries, length, device="cuda")
        is_past = torch.arange(length, device="cuda") <= positions[:, None]
        out = functional.scaled_dot_product_attention(query[None], keys[None], values[None], is_past, enable_gqa=True)
        return out[0].transpose(0, 1)

    def own(self, num_queries: int) -> list[Tensor]:
        """Keys and values of the queries' own tokens, [T, Hkv, D], beside their queries as a projection leaves them."""
        slots = torch.cat([self._slots(row)[-num_queries:] for row in range(len(self.context_lens))])
        beside = torch.cat([self.query, self.keys[slots], self.values[slots]], dim=1)
        return list(beside.split([HEADS, KV_HEADS, KV_HEADS], dim=1)[1:])

    def _slots(self, row: int) -> Tensor:
        blocks = self.block_table[row].long()
        offsets = torch.arange(BLOCK_SIZE, device="cuda")
        return (blocks[:, None] * BLOCK_SIZE + offsets).view(-1)[: int(self.context_lens[row])]


def make_inputs(num_rows: int, context: int, num_queries: int) -> AttentionInputs:
    """Random bf16 inputs."""
    blocks_each = -(-context // BLOCK_SIZE)
    num_blocks = num_rows * blocks_each
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    query = torch.randn(num_rows * num_queries, HEADS, DIM, **bf16)
    return AttentionInputs(
        query=query,
        out=torch.full_like(query, torch.nan),
        keys=torch.randn(num_blocks * BLOCK_SIZE, KV_HEADS, DIM, **bf16),
        values=torch.randn(num_blocks * BLOCK_SIZE, KV_HEADS, DIM, **bf16),
        block_table=torch.randperm(num_blocks, device="cuda", dtype=torch.int32).view(num_rows, blocks_each),
        context_lens=torch.full((num_rows,), context, dtype=torch.int32, device="cuda"),
    )
