"""Turns a StepPlan into a ForwardBatch with vector operations only: no loop over rows, tokens or layers.

Called by the ModelRunner once per step. All index arithmetic of a step lives here.
"""

import itertools

import numpy as np
import torch
from torch import Tensor

from services.generator.core.plan import TOKEN_ON_DEVICE, IntArray, StepPlan
from services.generator.kernels.reference.lora import slot_groups
from services.generator.layers.forward_batch import AttentionGroup, ForwardBatch
from services.generator.runner.row_tables import RowTables

Windows = tuple[int | None, ...]
"""See `DecoderConfig.windows`."""


def make_forward_batch(
    plan: StepPlan, tables: RowTables, block_size: int, *, dtype: torch.dtype, windows: Windows = (None,)
) -> ForwardBatch:
    """The step's tensors; `tables` must have the plan applied.

    Args:
        dtype: of the attention masks, which is that of the queries.
        windows: of the model's layers. Keys before all windows stay allocated and are masked, not skipped.
    """
    device = tables.block_table.device
    ends = np.cumsum(plan.num_new_tokens, dtype=np.int64)
    token_rows = np.repeat(np.arange(len(plan.rows)), plan.num_new_tokens)  # [T] row index of each token
    offsets = np.arange(plan.num_tokens) - (ends - plan.num_new_tokens)[token_rows]  # [T] place within its chunk
    positions = torch.from_numpy(plan.num_computed_tokens[token_rows] + offsets).to(device)
    state_rows = torch.from_numpy(plan.rows[token_rows].astype(np.int64)).to(device)
    given_ids = torch.from_numpy(plan.token_ids.astype(np.int64)).to(device)
    adapter_slots = torch.from_numpy(plan.adapter_slots[token_rows]).to(device)
    blocks = tables.block_table[state_rows, positions // block_size]
    return ForwardBatch(
        token_ids=torch.where(given_ids == TOKEN_ON_DEVICE, tables.last_token[state_rows], given_ids),
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        groups=[_group(plan, part, tables, block_size, windows=windows, dtype=dtype) for part in _parts(plan)],
        logits_index=torch.from_numpy(ends[plan.sampled] - 1).to(device),
        adapter_slots=adapter_slots,
        adapter_rows=slot_groups(adapter_slots),
    )


def _parts(plan: StepPlan) -> list[slice]:
    """The decode rows, then the prefill rows by the power of two above their length, so that padding at most doubles."""
    kinds = np.frexp(plan.num_new_tokens - 1)[1]
    kinds[: plan.num_decodes] = -1
    borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    return [slice(start, end) for start, end in itertools.pairwise(borders)]


def _group(
    plan: StepPlan, part: slice, tables: RowTables, block_size: int, *, windows: Windows, dtype: torch.dtype
) -> AttentionGroup:
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
    # Padded queries stand where the row's last one does, so that they too see a key, whatever the window.
    offsets = np.minimum(np.arange(num_queries), lengths[:, None] - 1)
    query_positions = torch.from_numpy(starts[:, None] + offsets).to(device)  # [S, Q]
    masks = _masks(query_positions, num_blocks * block_size, windows, dtype)
    query_index, token_index = (None, None) if num_queries == 1 else _padding(lengths, num_queries, device)
    return AttentionGroup(tokens, query_index, token_index, kv_slots, masks)


def _masks(query_positions: Tensor, num_keys: int, windows: Windows, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """[S, 1, Q, K] for each window: a query sees itself and the `window - 1` keys before it, or all before it."""
    queries, keys = query_positions[:, :, None], torch.arange(num_keys, device=query_positions.device)
    is_past = keys <= queries  # [S, Q, K]
    seen = [is_past if window is None else is_past & (keys > queries - window) for window in windows]
    zeros = torch.zeros(is_past.shape, dtype=dtype, device=is_past.device)
    return tuple(zeros.masked_fill(~is_seen, float("-inf"))[:, None] for is_seen in seen)


def _padding(lengths: IntArray, num_queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Maps between packed tokens and queries padded to `num_queries` a row."""
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    columns = np.arange(num_queries)
    is_token = columns < lengths[:, None]  # [S, Q]
    query_index = np.where(is_token, starts[:, None] + columns, 0)  # padding repeats token 0; its output is dropped
    token_index = np.flatnonzero(is_token)
    return torch.from_numpy(query_index).to(device), torch.from_numpy(token_index).to(device)
