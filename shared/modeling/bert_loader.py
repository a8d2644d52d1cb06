"""Reads a folder's tensors into an encoder built like BERT, by the names that its family gives them.

Called through `shared.modeling.encoders`. Refuses what is missing, misshaped or unknown, naming it; guesses nothing.
"""

from pathlib import Path

import torch
from torch import Tensor

from shared.modeling.bert import BertConfig, BertEmbeddings, BertEncoder, BertLayer
from shared.modeling.bert_families import BertFamily
from shared.modeling.encoder_layers import ACTIVATIONS, LayerNorm
from shared.modeling.linear import LinearLayer, make_linear
from shared.modeling.relative_bias import RelativeBias
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

_HEADS = ("pooler.", "cls.", "lm_head.", "vocab_", "classifier.", "pre_classifier.")
"""What a head's tensors begin with; they are none of the encoder's business."""
_IGNORED = ("pooler.", "embeddings.position_ids")


def load_bert(folder: Path, dtype: torch.dtype, device: torch.device, family: BertFamily) -> BertEncoder:
    """The encoder in `folder`.

    Raises:
        ModelFolderError: config or weights are missing, of the wrong shape or not supported.
    """
    config = BertConfig.from_json(read_json(folder / "config.json"), family)
    with WeightFiles(folder) as files:
        encoder = _BertLoader(config, family, files, dtype, device).load()
        ignored = (*_HEADS, *_IGNORED, *(family.prefix + name for name in _IGNORED))
        left = sorted(name for name in files.unread() if not name.startswith(ignored))
    if left:
        raise ModelFolderError(
            f"the weights have {len(left)} tensors that the encoder does not know, such as {left[0]}"
        )
    return encoder


class _BertLoader:
    def __init__(
        self, config: BertConfig, family: BertFamily, files: WeightFiles, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._family = family
        self._files = files
        self._dtype = dtype
        self._device = device
        self._prefix = family.prefix if any(name.startswith(family.prefix) for name in files.names()) else ""

    def load(self) -> BertEncoder:
        layers = [self._layer(f"{self._family.layers}{index}.") for index in range(self._config.num_layers)]
        return BertEncoder(self._config, self._embeddings(), layers, self._relative_bias())

    def _embeddings(self) -> BertEmbeddings:
        config, hidden = self._config, self._config.hidden_size
        words = self._read("embeddings.word_embeddings.weight", config.vocab_size, hidden)
        positions = self._read("embeddings.position_embeddings.weight", config.num_positions, hidden)[None]
        if config.num_token_types:
            types = self._read("embeddings.token_type_embeddings.weight", config.num_token_types, hidden)
            positions = positions + types[:, None]
        return BertEmbeddings(words, positions, self._norm("embeddings.LayerNorm"), config.padding_id)

    def _relative_bias(self) -> RelativeBias | None:
        if self._family.relative_bias is None:
            return None
        weight = self._read(self._family.relative_bias, RelativeBias.NUM_BUCKETS, self._config.num_heads)
        return RelativeBias(weight, self._config.max_positions)

    def _layer(self, prefix: str) -> BertLayer:
        family, hidden, inner = self._family, self._config.hidden_size, self._config.intermediate_size
        return BertLayer(
            qkv=self._linear([prefix + name for name in family.qkv], hidden, hidden),
            attention_out=self._linear([prefix + family.attention_out], hidden, hidden),
            attention_norm=self._norm(prefix + family.attention_norm),
            up=self._linear([prefix + family.up], hidden, inner),
            down=self._linear([prefix + family.down], inner, hidden),
            norm=self._norm(prefix + family.norm),
            activation=ACTIVATIONS[self._config.activation],
        )

    def _linear(self, names: list[str], num_in: int, num_out: int) -> LinearLayer:
        weight = torch.cat([self._read(f"{name}.weight", num_out, num_in) for name in names])
        bias = torch.cat([self._read(f"{name}.bias", num_out) for name in names])
        return make_linear(weight, bias)

    def _norm(self, name: str) -> LayerNorm:
        """Folders converted from the first BERT checkpoints call weight and bias gamma and beta."""
        size, is_old = self._config.hidden_size, f"{self._prefix}{name}.gamma" in self._files
        weight, bias = ("gamma", "beta") if is_old else ("weight", "bias")
        return LayerNorm(
            self._read(f"{name}.{weight}", size), self._read(f"{name}.{bias}", size), self._config.norm_eps
        )

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._files.read(self._prefix + name, shape, self._dtype).to(self._device)
