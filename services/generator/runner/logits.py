"""What changes logits before a token is chosen: penalties, biases, masks, bad words, a minimum length.

Called by the Sampler, each function only in steps where some row needs it. All work on all rows at once with parameters that do
nothing for the others, so the number of operations does not depend on the number of rows.
"""

import torch
from torch import Tensor

from services.generator.core.plan import ANY_TOKEN, MASK_BITS
from services.generator.runner.sampling_tables import SamplingTables

_NEVER = float("-inf")


def add_penalties(logits: Tensor, tables: SamplingTables, rows: Tensor) -> Tensor:
    """Repetition (arXiv:1909.05858, §4.1) over prompt and output, then frequency and presence over the output.

    Args:
        logits: [N, V] fp32.
        rows: [N].
    """
    counts = tables.counts[rows]
    repetition = tables.repetition_penalty[rows, None]
    penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where((counts > 0) | tables.is_in_prompt[rows], penalised, logits)
    logits = logits - tables.frequency_penalty[rows, None] * counts
    return logits - tables.presence_penalty[rows, None] * (counts > 0)


def add_bias(logits: Tensor, tables: SamplingTables, rows: Tensor) -> Tensor:
    """Add each row's biases at their ids."""
    return logits.scatter_add(1, tables.bias_ids[rows], tables.bias_values[rows])


def mask_allowed(logits: Tensor, masks: Tensor) -> Tensor:
    """Exclude all ids whose bit in the row's mask, of `masks` [N, ceil(V / 32)] int32, is not set."""
    shifts = torch.arange(MASK_BITS, dtype=torch.int32, device=logits.device)
    bits = (masks[:, :, None] >> shifts) & 1  # [N, ceil(V / 32), 32]
    return logits.masked_fill(bits.view(len(masks), -1)[:, : logits.shape[1]] == 0, _NEVER)


def mask_bad_words(logits: Tensor, tables: SamplingTables, rows: Tensor) -> Tensor:
    """Exclude the last token of every bad word whose other tokens are the row's most recent ones."""
    prefixes, lasts = tables.bad_prefixes[rows], tables.bad_lasts[rows]  # [N, M, R], [N, M]
    fits = ((prefixes == ANY_TOKEN) | (prefixes == tables.recent[rows][:, None])).all(dim=-1) & (lasts != ANY_TOKEN)
    return logits.scatter_add(1, lasts.clamp(min=0), torch.where(fits, _NEVER, 0.0))


def mask_early_stops(logits: Tensor, tables: SamplingTables, rows: Tensor, positions: Tensor) -> Tensor:
    """Exclude the stop ids of rows whose next token, at `positions` [N], would come too early."""
    ids = tables.stop_ids[rows]
    is_id = torch.arange(ids.shape[1], device=ids.device) < tables.num_stop_ids[rows, None]
    is_early = (positions < tables.min_position[rows])[:, None]
    return logits.scatter_add(1, ids, torch.where(is_id & is_early, _NEVER, 0.0))
