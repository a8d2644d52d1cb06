"""What the reference backends want of a step besides the packed indices: rows in groups, with masks; tokens by adapter.

Called by the ModelRunner where a reference backend is in use. Vector operations only, but some of them wait for the device and
their sizes follow the plan, so that no graph can hold them.
"""

import itertools

import numpy as np
import torch
from torch import Tensor

from services.generator.core.plan import IntArray, StepPlan
from services.generator.kernels.reference.lora import SlotGroup, slot_groups
from services.generator.layers.forward_batch import AttentionGroup

Windows = tuple[int | None, ...]
"""See `DecoderConfig.windows`."""


def adapter_groups(plan: StepPlan, device: torch.device) -> list[SlotGroup]:
    """The tokens by adapter slot, those of the base model left out."""
    return slot_groups(torch.from_numpy(np.repeat(plan.adapter_slots, plan.num_new_tokens)).to(device))


def attention_groups(
    plan: StepPlan, block_table: Tensor, block_size: int, *, dtype: torch.dtype, windows: Windows
) -> list[AttentionGroup]:
    """The rows in groups; all tokens in order.

    Args:
        block_table: [max_num_seqs, blocks], with the plan applied.
        dtype: of the masks, which is that of the queries.
        windows: of the model's layers. Keys before all windows stay allocated and are masked, not skipped.
    """
    return [_group(plan, part, block_table, block_size, windows=windows, dtype=dtype) for part in _parts(plan)]


def _parts(plan: StepPlan) -> list[slice]:
    """The decode rows, then the prefill rows by the power of two above their length, so that padding at most doubles."""
    kinds = np.frexp(plan.num_new_tokens - 1)[1]
    kinds[: plan.num_decodes] = -1
    borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    return [slice(start, end) for start, end in itertools.pairwise(borders)]


def _group(
    plan: StepPlan, part: slice, block_table: Tensor, block_size: int, *, windows: Windows, dtype: torch.dtype
) -> AttentionGroup:
    """Attention indices for the rows in `part`.

    keys of a row:  | computed before | this chunk | padding to the longest row of the group |

    Padding repeats the row's first key: what was left in other slots may not be finite, and 0 times that is not 0.
    """
    rows, lengths, starts = plan.rows[part], plan.num_new_tokens[part], plan.num_computed_tokens[part]
    device = block_table.device
    first_token = int(plan.num_new_tokens[: part.start].sum())
    tokens = slice(first_token, first_token + int(lengths.sum()))
    num_blocks = -(-int((starts + lengths).max()) // block_size)
    slot_offsets = torch.arange(block_size, device=device)
    block_ids = block_table[torch.from_numpy(rows.astype(np.int64)).to(device), :num_blocks]  # [S, blocks]
    slots = (block_ids[:, :, None] * block_size + slot_offsets).view(len(rows), -1)  # [S, K]
    is_key = torch.from_numpy(np.arange(slots.shape[1]) < (starts + lengths)[:, None]).to(device)
    kv_slots = torch.where(is_key, slots, slots[:, :1]).view(-1)  # [S * K]
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
