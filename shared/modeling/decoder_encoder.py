"""A decoder used as an encoder: the same layers as in generation, each sequence seen once, without a cache.

Made through `shared.modeling.encoders`. Causal, unless config.json says `is_causal` false (LLM2Vec, arXiv:2404.05961, §2.1).
Sequences begin at position 0 and are padded behind their end, where causal attention does not look.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.config import DecoderConfig, read_decoder_config
from shared.modeling.decoder import (
    DecoderLayer,
    DecoderOps,
    DecoderWeights,
    Linear,
    decoder_forward,
    linear,
    norm_heads,
)
from shared.modeling.decoder_loader import load_decoder
from shared.modeling.flash_attention import can_flash, flash_attention
from shared.modeling.ragged import RaggedBatch
from shared.modeling.rope import apply_rope, rope_table
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

DECODERS = ("Llama", "Mistral", "Qwen2", "Qwen3")


class DecoderEncoder:
    """A decoder without its head.

    Args:
        table: [P, D], see `rope_table`.
    """

    num_token_types = 0

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, table: Tensor, *, is_causal: bool) -> None:
        self.vocab_size = config.vocab_size
        self.max_positions = config.context_len
        self.hidden_size = config.hidden_size
        self.has_padding = not can_flash(table, config.head_dim)
        self._config = config
        self._weights = weights
        self._table = table
        self._is_causal = is_causal

    def encode(self, batch: RaggedBatch) -> Tensor:
        """Hidden states after the last norm, [T, H]."""
        return decoder_forward(self._weights, self._config, self._ops(batch), batch.token_ids)

    def _ops(self, batch: RaggedBatch) -> "_WholeSequences":
        rows = self._table.index_select(0, batch.positions)
        return _WholeSequences(self._config, batch, rows, is_causal=self._is_causal, is_padded=self.has_padding)


class _WholeSequences(DecoderOps):
    """The decoder's operations for one batch."""

    def __init__(
        self, config: DecoderConfig, batch: RaggedBatch, rows: Tensor, *, is_causal: bool, is_padded: bool
    ) -> None:
        self._config = config
        self._batch = batch
        self._rows = rows
        self._is_causal = is_causal
        self._is_padded = is_padded
        self._masks: dict[int | None, Tensor | None] = {}

    def project(self, layer: int, group: str, projection: Linear, x: Tensor) -> Tensor:
        """No adapters here."""
        return linear(projection, x)

    def attend(self, index: int, layer: DecoderLayer, qkv: Tensor) -> Tensor:
        """Each token to those before it in its own sequence, as far as the layer's window goes."""
        config = self._config
        window = config.windows[config.layers[index].window_index]
        heads = norm_heads(qkv, layer, config).view(len(qkv), -1, config.head_dim)
        qk, v = torch.split(heads, [config.num_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        qk = apply_rope(qk, self._rows)
        if self._is_padded:
            return self._attend_padded(torch.cat([qk, v], dim=1).flatten(1), window)
        q, k = torch.split(qk, [config.num_heads, config.num_kv_heads], dim=1)
        reach = None if window is None else (window - 1, 0)
        return flash_attention(q, k, v, self._batch, is_causal=self._is_causal, window=reach)

    def _attend_padded(self, qkv: Tensor, window: int | None) -> Tensor:
        config, batch = self._config, self._batch
        mask = self._mask(window)
        padded = batch.pad(qkv).view(batch.num_sequences, batch.max_length, -1, config.head_dim).transpose(1, 2)
        q, k, v = torch.split(padded, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        is_causal = self._is_causal and mask is None
        attended = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=config.num_heads != config.num_kv_heads
        )
        return batch.unpad(attended.transpose(1, 2))

    def _mask(self, window: int | None) -> Tensor | None:
        """What hides keys besides causality; the layers share it."""
        if window not in self._masks:
            self._masks[window] = _window_mask(self._batch, window) if self._is_causal else self._batch.mask
        return self._masks[window]


def _window_mask(batch: RaggedBatch, window: int | None) -> Tensor | None:
    """mask[i, j] = i - window < j <= i, [max_length, max_length] bool; None where the window hides nothing."""
    if window is None or batch.max_length <= window:
        return None
    places = torch.arange(batch.max_length, device=batch.token_ids.device)
    distances = places[:, None] - places[None, :]
    return (distances >= 0) & (distances < window)


def load_decoder_encoder(folder: Path, dtype: torch.dtype, device: torch.device) -> DecoderEncoder:
    """The decoder in `folder`, saved with any head or none.

    Raises:
        ModelFolderError: config or weights are missing, of the wrong shape or not supported.
    """
    content = read_json(folder / "config.json")
    is_causal = content.get("is_causal") is not False
    family = next(name for name in DECODERS if str(content["architectures"][0]).startswith(name))
    config = read_decoder_config({**content, "architectures": [f"{family}ForCausalLM"], "is_causal": None})
    if not is_causal and config.windows != (None,):
        raise ModelFolderError("config.json: is_causal false together with a sliding window is not supported")
    weights = load_decoder(folder, config, dtype, device, needs_head=False)
    table = rope_table(config.rope, config.context_len, dtype, device)
    return DecoderEncoder(config, weights, table, is_causal=is_causal)
