"""Turns a StepPlan into a ForwardBatch with vector operations only: no loop over rows, tokens or layers.

Called by the ModelRunner once per step. All index arithmetic of a step lives here.
"""

import itertools

import numpy as np
import torch
from torch import Tensor

from services.generator.core.plan import TOKEN_ON_DEVICE, IntArray, StepPlan
from services.generator.layers.forward_batch import AttentionGroup, ForwardBatch
from services.generator.runner.row_tables import RowTables


def make_forward_batch(plan: StepPlan, tables: RowTables, block_size: int, dtype: torch.dtype) -> ForwardBatch:
    """The step's tensors; `tables` must have the plan applied.

    Args:
        dtype: of the attention masks, which is that of the queries.
    """
    device = tables.block_table.device
    ends = np.cumsum(plan.num_new_tokens, dtype=np.int64)
    token_rows = np.repeat(np.arange(len(plan.rows)), plan.num_new_tokens)  # [T] row index of each token
    offsets = np.arange(plan.num_tokens) - (ends - plan.num_new_tokens)[token_rows]  # [T] place within its chunk
    positions = torch.from_numpy(plan.num_computed_tokens[token_rows] + offsets).to(device)
    state_rows = torch.from_numpy(plan.rows[token_rows].astype(np.int64)).to(device)
    given_ids = torch.from_numpy(plan.token_ids.astype(np.int64)).to(device)
    blocks = tables.block_table[state_rows, positions // block_size]
    return ForwardBatch(
        token_ids=torch.where(given_ids == TOKEN_ON_DEVICE, tables.last_token[state_rows], given_ids),
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        groups=[_group(plan, part, tables, block_size, dtype) for part in _parts(plan)],
        logits_index=torch.from_numpy(ends[plan.sampled] - 1).to(device),
    )


def _parts(plan: StepPlan) -> list[slice]:
    """The decode rows, then the prefill rows by the power of two above their length, so that padding at most doubles."""
    kinds = np.frexp(plan.num_new_tokens - 1)[1]
    kinds[: plan.num_decodes] = -1
    borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    return [slice(start, end) for start, end in itertools.pairwise(borders)]


def _group(plan: StepPlan, part: slice, tables: RowTables, block_size: int, dtype: torch.dtype) -> AttentionGroup:
    """Attention indices for the rows in `part`.

    keys of a row:  | computed before | this chunk | padding to the longest row of the group |
    """
    rows, lengths, starts = plan.rows[part], plan.num_new_tokens[part], plan.num_computed_tokens[part]
    device = tables.block_table.device
    first_token = int(plan.num_new_tokens[: part.start].sum())
    tokens = slice(first_token, first_token + int(lengths.sum()))
    num_blocks = -(-int((starts + lengths).max()) // block_size)
    slot_offsets = torch.arange(block_size, device=device)
    block_ids = tables.block_table[torch.from_numpy(rows.astype(np.int64)).to(device), :num_blocks]  # [S, blocks]
    kv_slots = (block_ids[:, :, None] * block_size + slot_offsets).view(-1)  # [S * K]
    num_queries = int(lengths.max())
    query_positions = torch.from_numpy(starts[:, None] + np.arange(num_queries)).to(device)  # [S, Q]
    is_seen = torch.arange(num_blocks * block_size, device=device) <= query_positions[:, :, None]  # [S, Q, K]
    mask = torch.zeros(is_seen.shape, dtype=dtype, device=device).masked_fill_(~is_seen, float("-inf"))
    query_index, token_index = (None, None) if num_queries == 1 else _padding(lengths, num_queries, device)
    return AttentionGroup(tokens, query_index, token_index, kv_slots, mask[:, None])


def _padding(lengths: IntArray, num_queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Maps between packed tokens and queries padded to `num_queries` a row."""
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    columns = np.arange(num_queries)
    is_token = columns < lengths[:, None]  # [S, Q]
    query_index = np.where(is_token, starts[:, None] + columns, 0)  # padding repeats token 0; its output is dropped
    token_index = np.flatnonzero(is_token)
    return torch.from_numpy(query_index).to(device), torch.from_numpy(token_index).to(device)
