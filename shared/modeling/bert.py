"""Encoders built like BERT in plain torch, for inference: token ids in, one hidden state per token out.

Made by `bert_loader`. Runs on flat tokens; only attention sees sequences side by side.
Source: BERT: Pre-training of Deep Bidirectional Transformers, arXiv:1810.04805, §3. We differ: q, k and v are one product.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor
from torch.nn import functional

from shared.modeling.batch_attention import BatchAttention, PaddedAttention, batch_attention
from shared.modeling.bert_families import BertFamily
from shared.modeling.encoder_layers import ACTIVATIONS, Activation, LayerNorm
from shared.modeling.flash_attention import can_flash
from shared.modeling.linear import LinearLayer
from shared.modeling.ragged import RaggedBatch
from shared.modeling.relative_bias import RelativeBias
from shared.settings.errors import ModelFolderError


@dataclass(frozen=True)
class BertConfig:
    """The part of config.json that shapes the encoder.

    Attributes:
        num_positions: rows of the table of positions.
        num_token_types: 0 where the family has none.
        padding_id: see `BertFamily`.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    num_positions: int
    num_token_types: int
    padding_id: int | None
    norm_eps: float
    activation: str

    @classmethod
    def from_json(cls, config: Mapping[str, Any], family: BertFamily) -> Self:
        """Read config.json.

        Raises:
            ModelFolderError: a value is missing, or asks for a kind of encoder that is not supported.
        """
        _refuse_variants(config)
        activation = config.get(family.size_key("hidden_act"))
        if activation not in ACTIVATIONS:
            raise ModelFolderError(f"config.json: {family.size_key('hidden_act')} {activation!r} is not supported")

        def size(name: str) -> int:
            key = family.size_key(name)
            if not isinstance(config.get(key), int):
                raise ModelFolderError(f"config.json has no number {key}")
            return int(config[key])

        padding_id = family.padding_id
        if family.reads_padding_id and config.get("pad_token_id") is not None:
            padding_id = size("pad_token_id")
        parsed = cls(
            vocab_size=size("vocab_size"),
            hidden_size=size("hidden_size"),
            num_layers=size("num_hidden_layers"),
            num_heads=size("num_attention_heads"),
            intermediate_size=size("intermediate_size"),
            num_positions=size("max_position_embeddings"),
            num_token_types=size("type_vocab_size") if family.has_token_types else 0,
            padding_id=padding_id,
            norm_eps=float(config.get("layer_norm_eps") or 1e-12),
            activation=activation,
        )
        if parsed.hidden_size % parsed.num_heads != 0:
            raise ModelFolderError(
                f"config.json: {family.size_key('hidden_size')} is no multiple of {family.size_key('num_attention_heads')}"
            )
        return parsed

    @property
    def max_positions(self) -> int:
        """Longest sequence in tokens."""
        return self.num_positions - (0 if self.padding_id is None else self.padding_id + 1)


def _refuse_variants(config: Mapping[str, Any]) -> None:
    position_kind = config.get("position_embedding_type") or "absolute"
    if position_kind != "absolute":
        raise ModelFolderError(f"config.json: position_embedding_type {position_kind!r} is not supported")
    if config.get("is_decoder"):
        raise ModelFolderError("config.json: is_decoder true is not supported for an encoder")


@dataclass(frozen=True)
class BertLayer:
    """Attention, then the feed-forward network, each followed by residual and norm."""

    qkv: LinearLayer
    attention_out: LinearLayer
    attention_norm: LayerNorm
    up: LinearLayer
    down: LinearLayer
    norm: LayerNorm
    activation: Activation

    def __call__(self, x: Tensor, attend: BatchAttention) -> Tensor:
        attended = self.attention_out(attend(self.qkv(x)))
        x = self.attention_norm.of_sum(attended, x)
        return self.norm.of_sum(self.down(self.activation(self.up(x))), x)


@dataclass(frozen=True)
class BertEmbeddings:
    """What a token is before the first layer.

    Attributes:
        words: [V, H].
        positions: [num_token_types or 1, num_positions, H], the embeddings of positions with that of a token type added.
        padding_id: see `BertFamily`.
    """

    words: Tensor
    positions: Tensor
    norm: LayerNorm
    padding_id: int | None

    def __call__(self, batch: RaggedBatch) -> Tensor:
        x = functional.embedding(batch.token_ids, self.words)
        rows = batch.positions if self.padding_id is None else positions_after(batch, self.padding_id)
        if batch.token_types is not None and len(self.positions) > 1:
            rows = rows + batch.token_types * self.positions.shape[1]
        return self.norm.of_sum(x, functional.embedding(rows, self.positions.flatten(0, 1)))


def positions_after(batch: RaggedBatch, padding_id: int) -> Tensor:
    """Positions as fairseq counts them: from `padding_id` + 1 on; a token that is `padding_id` counts as none and gets it.

    Returns:
        [T] int64.
    """
    is_counted = (batch.token_ids != padding_id).long()
    counts = is_counted.cumsum(0)
    before = functional.pad(counts, (1, 0))[batch.cu_lengths[:-1]]  # [S], tokens counted before each sequence
    return (counts - before[batch.sequence_ids]) * is_counted + padding_id


class BertEncoder:
    """The embeddings and the stack of layers.

    Args:
        bias: None in families without relative positions.
    """

    def __init__(
        self, config: BertConfig, embeddings: BertEmbeddings, layers: list[BertLayer], bias: RelativeBias | None
    ) -> None:
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.hidden_size = config.hidden_size
        self.num_token_types = config.num_token_types
        self.has_padding = bias is not None or not can_flash(embeddings.words, config.hidden_size // config.num_heads)
        self._num_heads = config.num_heads
        self._embeddings = embeddings
        self._layers = layers
        self._bias = bias

    def encode(self, batch: RaggedBatch) -> Tensor:
        """Hidden states of the last layer, [T, H]."""
        x = self._embeddings(batch)
        attend = self._attention(batch)
        for layer in self._layers:
            x = layer(x, attend)
        return x

    def _attention(self, batch: RaggedBatch) -> BatchAttention:
        if self._bias is not None:
            return PaddedAttention(batch, self._num_heads, self._bias.mask(batch))
        return batch_attention(batch, self._num_heads, is_padded=self.has_padding)
