"""Attention of one layer over the rows of a step, group by group.

Called by the runner's `StepOps`. Chooses the kernel for each group; the mathematics is in `kernels`.
"""

import torch
from torch import Tensor

from services.generator.kernels.reference.paged_attention import paged_attention_decode, paged_attention_prefill
from services.generator.layers.forward_batch import AttentionGroup, ForwardBatch


def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: ForwardBatch, *, window_index: int) -> Tensor:
    """Attend with all tokens of the step; their keys and values are in the cache already.

    Args:
        query: [T, Hq, D].
        key_cache: [slots, Hkv, D] of one layer.
        value_cache: likewise.
        window_index: which of the model's windows the layer sees.
    Returns:
        [T, Hq * D].
    """
    return torch.cat(
        [
            _attend_group(query[group.tokens], key_cache, value_cache, group, group.masks[window_index])
            for group in batch.groups
        ]
    )


def _attend_group(query: Tensor, key_cache: Tensor, value_cache: Tensor, group: AttentionGroup, mask: Tensor) -> Tensor:
    if group.query_index is None or group.token_index is None:
        return paged_attention_decode(query, key_cache, value_cache, group.kv_slots, mask)
    return paged_attention_prefill(
        query, key_cache, value_cache, group.kv_slots, mask, group.query_index, group.token_index
    )
