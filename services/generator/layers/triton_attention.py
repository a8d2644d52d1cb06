"""Attention of one layer over the rows of a step with the Triton kernels.

Called by the runner's `StepOps`, also while a CUDA graph is captured: all that outlives a call was made at start.
"""

import torch
from torch import Tensor

from services.generator.kernels.arguments import ROW_ALIGNMENT
from services.generator.kernels.paged_attention_decode import num_splits, paged_attention_decode
from services.generator.kernels.paged_attention_prefill import paged_attention_prefill
from services.generator.kernels.rope_kv_write import rope_kv_write
from services.generator.layers.forward_batch import ForwardBatch
from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderLayer


class TritonAttention:
    """See `Attention`.

    Args:
        keys: [L, slots, Hkv, D].
        values: likewise.
        max_tokens: the most tokens of a step.
        max_rows: the most decode rows of a step.
    """

    def __init__(
        self, config: DecoderConfig, keys: Tensor, values: Tensor, *, block_size: int, max_tokens: int, max_rows: int
    ) -> None:
        self._config = config
        self._keys = keys
        self._values = values
        self._block_size = block_size
        # Zeros, not whatever was there: padding rows are left untouched, and what they hold goes on through the layers.
        self._out = keys.new_zeros(max_tokens, config.num_heads, config.head_dim)
        most = max(rows * num_splits(rows, config.num_kv_heads) for rows in range(1, max_rows + 1))
        self._parts = keys.new_zeros(most * config.num_heads * config.head_dim, dtype=torch.float32)
        self._part_lse = keys.new_zeros(most * config.num_heads, dtype=torch.float32)

    def __call__(self, index: int, layer: DecoderLayer, qkv: Tensor, batch: ForwardBatch, rotary: Tensor) -> Tensor:
        """Rotate, write K and V to the cache, attend over it; [T, Hq * D], to be read before the next call."""
        config, kind, paged = self._config, self._config.layers[index], batch.paged
        keys, values = self._keys[index], self._values[index]
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotated = heads[:, : config.num_heads + config.num_kv_heads]
        query = heads[:, : config.num_heads]
        table_rows = rotary if kind.has_rope else None
        norms = (layer.q_norm, layer.k_norm)
        rope_kv_write(rotated, keys, values, qkv, table_rows, batch.slot_mapping, *norms, config.norm_eps)
        out, split, window = self._out[: len(qkv)], paged.num_decodes, config.windows[kind.window_index]
        if split:
            self._decode(out[:split], query[:split], keys, values, batch, window)
        if split < len(query):
            paged_attention_prefill(
                out[split:],
                query[split:],
                _aligned(rotated[split:, config.num_heads :]),
                _aligned(heads[split:, -config.num_kv_heads :]),
                keys,
                values,
                paged.block_table[split:],
                paged.context_lens[split:],
                paged.cu_query_lens,
                paged.tiles,
                block_size=self._block_size,
                window=window,
            )
        return out.flatten(1)

    def _decode(
        self, out: Tensor, query: Tensor, keys: Tensor, values: Tensor, batch: ForwardBatch, window: int | None
    ) -> None:
        num_rows, num_heads, head_dim = query.shape
        splits = num_splits(num_rows, self._config.num_kv_heads)
        parts = self._parts[: num_rows * num_heads * splits * head_dim].view(num_rows, num_heads, splits, head_dim)
        part_lse = self._part_lse[: num_rows * num_heads * splits].view(num_rows, num_heads, splits)
        table, lens = batch.paged.block_table[:num_rows], batch.paged.context_lens[:num_rows]
        paged_attention_decode(
            out, parts, part_lse, query, keys, values, table, lens, block_size=self._block_size, window=window
        )


def _aligned(heads: Tensor) -> Tensor:
    """[T, Hkv, D] as tensor descriptors need them: a copy where heads or tokens begin elsewhere than at multiples of 16 bytes.

    Heads do where D is odd for the dtype, tokens where adapters of odd ranks have their rank-r side beside the projection.
    """
    if all(stride * heads.itemsize % ROW_ALIGNMENT == 0 for stride in heads.stride()[:2]):
        return heads
    num_tokens, num_heads, head_dim = heads.shape
    padded = heads.new_empty(num_tokens, num_heads, head_dim + -head_dim % (ROW_ALIGNMENT // heads.itemsize))
    return padded[:, :, :head_dim].copy_(heads)
