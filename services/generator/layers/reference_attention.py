"""Attention of one layer over the rows of a step in plain torch, group by group: the backend of a CPU.

Called by the runner's `StepOps`. The mathematics is in `kernels.reference`.
"""

import torch
from torch import Tensor

from services.generator.kernels.reference.paged_attention import paged_attention_decode, paged_attention_prefill
from services.generator.layers.forward_batch import AttentionGroup, ForwardBatch
from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderLayer, norm_heads
from shared.modeling.rope import apply_rope


class ReferenceAttention:
    """See `Attention`."""

    def __init__(self, config: DecoderConfig, keys: Tensor, values: Tensor) -> None:
        self._config = config
        self._keys = keys  # [L, slots, Hkv, D]
        self._values = values

    def __call__(self, index: int, layer: DecoderLayer, qkv: Tensor, batch: ForwardBatch, rotary: Tensor) -> Tensor:
        """Rotate, write K and V to the cache, attend over it."""
        config = self._config
        heads = norm_heads(qkv, layer, config).view(len(qkv), -1, config.head_dim)  # [T, Hq + 2 Hkv, D]
        kind = config.layers[index]
        rotated = heads[:, : config.num_heads + config.num_kv_heads]
        if kind.has_rope:
            rotated = apply_rope(rotated, rotary)
        keys, values = self._keys[index], self._values[index]
        keys.index_copy_(0, batch.slot_mapping, rotated[:, config.num_heads :])
        values.index_copy_(0, batch.slot_mapping, heads[:, -config.num_kv_heads :])
        return attend(rotated[:, : config.num_heads], keys, values, batch, window_index=kind.window_index)


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
