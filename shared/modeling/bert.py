"""BERT's encoder in plain torch, for inference: token ids in, one hidden state per token out.

Loaded through `shared.modeling.encoders`. Runs on flat tokens; only attention sees sequences side by side.
Source: BERT: Pre-training of Deep Bidirectional Transformers, arXiv:1810.04805, §3. We differ: q, k and v are one product.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.ragged import RaggedBatch
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}
_UNUSED_PREFIXES = ("pooler.", "cls.", "bert.pooler.", "embeddings.position_ids", "bert.embeddings.position_ids")


@dataclass(frozen=True)
class BertConfig:
    """The part of config.json that shapes the encoder."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    num_token_types: int
    norm_eps: float
    activation: str

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read config.json.

        Raises:
            ModelFolderError: a value is missing, or asks for a kind of BERT that is not supported.
        """
        position_kind = config.get("position_embedding_type") or "absolute"
        if position_kind != "absolute":
            raise ModelFolderError(f"config.json: position_embedding_type {position_kind!r} is not supported")
        if config.get("is_decoder"):
            raise ModelFolderError("config.json: is_decoder true is not supported for BERT")
        if config.get("hidden_act") not in ACTIVATIONS:
            raise ModelFolderError(f"config.json: hidden_act {config.get('hidden_act')!r} is not supported")
        parsed = cls(
            vocab_size=_int(config, "vocab_size"),
            hidden_size=_int(config, "hidden_size"),
            num_layers=_int(config, "num_hidden_layers"),
            num_heads=_int(config, "num_attention_heads"),
            intermediate_size=_int(config, "intermediate_size"),
            max_positions=_int(config, "max_position_embeddings"),
            num_token_types=_int(config, "type_vocab_size"),
            norm_eps=float(config.get("layer_norm_eps") or 1e-12),
            activation=config["hidden_act"],
        )
        if parsed.hidden_size % parsed.num_heads != 0:
            raise ModelFolderError("config.json: hidden_size is no multiple of num_attention_heads")
        return parsed


def _int(config: Mapping[str, Any], key: str) -> int:
    if not isinstance(config.get(key), int):
        raise ModelFolderError(f"config.json has no number {key}")
    return int(config[key])


@dataclass(frozen=True)
class Linear:
    """x Wᵀ + b with the weight [out, in]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class LayerNorm:
    """Normalisation over the last axis."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class BertLayer:
    """Attention, then the feed-forward network, each followed by residual and norm."""

    qkv: Linear
    attention_out: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    norm: LayerNorm
    activation: Callable[[Tensor], Tensor]
    num_heads: int

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        attended = self.attention_out(self._attend(self.qkv(x), batch))
        x = self.attention_norm(attended.add_(x))
        return self.norm(self.down(self.activation(self.up(x))).add_(x))

    def _attend(self, qkv: Tensor, batch: RaggedBatch) -> Tensor:
        padded = batch.pad(qkv)  # [S, max_length, 3 * Hq * D]
        heads = padded.view(*padded.shape[:2], 3, self.num_heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each [S, Hq, max_length, D]
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=batch.mask)
        return batch.unpad(attended.transpose(1, 2))  # [T, Hq * D]


class BertEncoder:
    """The embeddings and the stack of layers.

    Args:
        words: [V, H] word embeddings.
        positions: [max_positions, H] position embeddings, with the embedding of token type 0 added.
    """

    def __init__(
        self, config: BertConfig, words: Tensor, positions: Tensor, norm: LayerNorm, layers: list[BertLayer]
    ) -> None:
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.hidden_size = config.hidden_size
        self._words = words
        self._positions = positions
        self._norm = norm
        self._layers = layers

    def encode(self, batch: RaggedBatch) -> Tensor:
        """Hidden states of the last layer, [T, H]."""
        x = functional.embedding(batch.token_ids, self._words)
        x = self._norm(x.add_(functional.embedding(batch.positions, self._positions)))
        for layer in self._layers:
            x = layer(x, batch)
        return x


def load_bert(folder: Path, dtype: torch.dtype, device: torch.device) -> BertEncoder:
    """The encoder in `folder`.

    Raises:
        ModelFolderError: config or weights are missing, of the wrong shape or not supported.
    """
    config = BertConfig.from_json(read_json(folder / "config.json"))
    with WeightFiles(folder) as files:
        encoder = _BertLoader(config, files, dtype, device).load()
        left = sorted(name for name in files.unread() if not name.startswith(_UNUSED_PREFIXES))
    if left:
        raise ModelFolderError(f"model.safetensors has {len(left)} tensors that BERT does not know, such as {left[0]}")
    return encoder


class _BertLoader:
    """Reads the tensors by their names in the checkpoint, which may all begin with `bert.`."""

    def __init__(self, config: BertConfig, files: WeightFiles, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._files = files
        self._dtype = dtype
        self._device = device
        self._prefix = "bert." if any(name.startswith("bert.") for name in files.names()) else ""

    def load(self) -> BertEncoder:
        config = self._config
        words = self._read("embeddings.word_embeddings.weight", config.vocab_size, config.hidden_size)
        positions = self._read("embeddings.position_embeddings.weight", config.max_positions, config.hidden_size)
        types = self._read("embeddings.token_type_embeddings.weight", config.num_token_types, config.hidden_size)
        layers = [self._layer(f"encoder.layer.{index}.") for index in range(config.num_layers)]
        return BertEncoder(config, words, positions + types[0], self._norm("embeddings.LayerNorm"), layers)

    def _layer(self, prefix: str) -> BertLayer:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        attention = prefix + "attention."
        return BertLayer(
            qkv=self._linear([f"{attention}self.{name}" for name in ("query", "key", "value")], hidden, hidden),
            attention_out=self._linear([f"{attention}output.dense"], hidden, hidden),
            attention_norm=self._norm(f"{attention}output.LayerNorm"),
            up=self._linear([f"{prefix}intermediate.dense"], hidden, inner),
            down=self._linear([f"{prefix}output.dense"], inner, hidden),
            norm=self._norm(f"{prefix}output.LayerNorm"),
            activation=ACTIVATIONS[self._config.activation],
            num_heads=self._config.num_heads,
        )

    def _linear(self, names: list[str], num_in: int, num_out: int) -> Linear:
        weight = torch.cat([self._read(f"{name}.weight", num_out, num_in) for name in names])
        bias = torch.cat([self._read(f"{name}.bias", num_out) for name in names])
        return Linear(weight, bias)

    def _norm(self, name: str) -> LayerNorm:
        size = self._config.hidden_size
        return LayerNorm(self._read(f"{name}.weight", size), self._read(f"{name}.bias", size), self._config.norm_eps)

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._files.read(self._prefix + name, shape, self._dtype).to(self._device)
