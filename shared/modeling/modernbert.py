"""ModernBERT's encoder in plain torch, for inference: norms before the blocks, rotary positions, and windows in most layers.

Made by `modernbert_loader`. Runs on flat tokens; only attention sees sequences side by side.
Source: Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder, arXiv:2412.13663, §2.1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.batch_attention import BatchAttention, batch_attention
from shared.modeling.encoder_layers import Activation, LayerNorm
from shared.modeling.flash_attention import can_flash
from shared.modeling.linear import LinearLayer
from shared.modeling.modernbert_config import ModernBertConfig
from shared.modeling.ragged import RaggedBatch
from shared.modeling.rope import apply_rope


@dataclass(frozen=True)
class ModernBertLayer:
    """Attention and a gated feed-forward network, each behind its norm and added to what came in.

    `attention_norm` is None in the first layer, whose input is normed already.
    """

    attention_norm: LayerNorm | None
    qkv: LinearLayer
    attention_out: LinearLayer
    norm: LayerNorm
    up_gate: LinearLayer
    down: LinearLayer
    activation: Activation
    is_local: bool

    def __call__(self, x: Tensor, attend: BatchAttention) -> Tensor:
        normed = x if self.attention_norm is None else self.attention_norm(x)
        x = x + self.attention_out(attend(self.qkv(normed)))
        up, gate = self.up_gate(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(self.activation(up) * gate)


class ModernBertEncoder:
    """The embeddings and the stack of layers.

    Args:
        words: [V, H].
        tables: rows of cosines and sines by position, for the layers that see everything and for those with a window.
    """

    num_token_types = 0

    def __init__(
        self,
        config: ModernBertConfig,
        words: Tensor,
        norms: tuple[LayerNorm, LayerNorm],
        layers: list[ModernBertLayer],
        tables: tuple[Tensor, Tensor],
    ) -> None:
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.hidden_size = config.hidden_size
        self.has_padding = not can_flash(words, config.head_dim)
        self._config = config
        self._words = words
        self._first_norm, self._last_norm = norms
        self._layers = layers
        self._tables = tables

    def encode(self, batch: RaggedBatch) -> Tensor:
        """Hidden states after the last norm, [T, H]."""
        x = self._first_norm(functional.embedding(batch.token_ids, self._words))
        windows = (None, self._config.half_window)
        attend_all, attend_near = (
            self._attention(batch, window, table) for window, table in zip(windows, self._tables, strict=True)
        )
        for layer in self._layers:
            x = layer(x, attend_near if layer.is_local else attend_all)
        return self._last_norm(x)

    def _attention(self, batch: RaggedBatch, half_window: int | None, table: Tensor) -> BatchAttention:
        num_heads, head_dim = self._config.num_heads, self._config.head_dim
        table_rows = table.index_select(0, batch.positions)
        attend = batch_attention(batch, num_heads, is_padded=self.has_padding, half_window=half_window)

        def rotate_and_attend(qkv: Tensor) -> Tensor:
            qk, v = torch.split(qkv, [2 * num_heads * head_dim, num_heads * head_dim], dim=-1)
            # In fp32 whatever the model's dtype, as in transformers; the table is fp32.
            rotated = apply_rope(qk.reshape(len(qk), 2 * num_heads, head_dim).float(), table_rows).to(qkv.dtype)
            return attend(torch.cat([rotated.flatten(1), v], dim=-1))

        return rotate_and_attend
