"""Rows over scattered blocks of a KV cache, and their attention by the oracle, for the tests of the attention kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.generator.kernels.reference.paged_attention import paged_attention_decode

BLOCK_SIZE, NUM_BLOCKS = 4, 320


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Inputs of one layer; slots that no row owns hold NaN.

    Attributes:
        keys: a cache, and `values` the other.
        earlier: the same two with NaN in the slots of the queries' own tokens.
        own: keys and values of those tokens [T, Hkv, D], side by side in one tensor as a projection leaves them.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    earlier: tuple[Tensor, Tensor]
    own: tuple[Tensor, Tensor]
    block_table: Tensor
    context_lens: Tensor
    query_lens: Tensor

    def expected(self, window: int | None) -> Tensor:
        """[T, Hq, D] in fp32: each token is a row of the decode oracle, with the keys up to its own."""
        rows = torch.arange(len(self.query_lens)).repeat_interleave(self.query_lens)
        ends = self.query_lens.cumsum(0)
        within = torch.arange(len(rows)) - (ends - self.query_lens)[rows]
        positions = (self.context_lens.cpu() - self.query_lens)[rows] + within
        offsets = torch.arange(int(self.context_lens.max()))
        slots = self.block_table.cpu().long()[rows][:, offsets // BLOCK_SIZE] * BLOCK_SIZE + offsets % BLOCK_SIZE
        is_seen = (offsets <= positions[:, None]) & (offsets > positions[:, None] - (window or 1 << 30))
        mask = torch.zeros(is_seen.shape).masked_fill(~is_seen, float("-inf"))[:, None, None]
        query, keys, values = (each.cpu().float().nan_to_num(0.0) for each in (self.query, self.keys, self.values))
        out = paged_attention_decode(query, keys, values, slots.view(-1), mask)
        return out.view(query.shape).to(self.query.device)


def make_case(
    context_lens: list[int],
    query_lens: list[int],
    shape: tuple[int, int, int],
    place: tuple[str, torch.dtype],
) -> AttentionCase:
    """Rows of so many keys, the last `query_lens` of which have queries; `shape` is Hq, Hkv, D."""
    device, dtype = place
    heads, kv_heads, dim = shape
    width = max(1, -(-max(context_lens) // BLOCK_SIZE))
    table = torch.zeros(len(context_lens), width, dtype=torch.int32)
    blocks = iter(torch.randperm(NUM_BLOCKS).tolist())
    is_owned = torch.zeros(NUM_BLOCKS * BLOCK_SIZE, dtype=torch.bool)
    for row, length in enumerate(context_lens):
        for column in range(-(-length // BLOCK_SIZE)):
            block = next(blocks)
            table[row, column] = block
            start = block * BLOCK_SIZE
            is_owned[start : start + min(BLOCK_SIZE, length - column * BLOCK_SIZE)] = True
    keys, values = torch.randn(2, NUM_BLOCKS * BLOCK_SIZE, kv_heads, dim)
    keys[~is_owned], values[~is_owned] = torch.nan, torch.nan
    own_slots = torch.cat([_slots(*row) for row in zip(table, context_lens, query_lens, strict=True)])
    earlier = keys.clone(), values.clone()
    for cache in earlier:
        cache[own_slots] = torch.nan
    own = torch.cat([keys[own_slots], values[own_slots]], dim=1).to(device, dtype)
    return AttentionCase(
        query=torch.randn(sum(query_lens), heads, dim).to(device, dtype),
        keys=keys.to(device, dtype),
        values=values.to(device, dtype),
        earlier=(earlier[0].to(device, dtype), earlier[1].to(device, dtype)),
        own=(own[:, :kv_heads], own[:, kv_heads:]),
        block_table=table.to(device),
        context_lens=torch.tensor(context_lens, dtype=torch.int32).to(device),
        query_lens=torch.tensor(query_lens),
    )


def _slots(blocks: Tensor, context_len: int, query_len: int) -> Tensor:
    """Of a row's last tokens."""
    positions = torch.arange(context_len - query_len, context_len)
    return blocks.long()[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
