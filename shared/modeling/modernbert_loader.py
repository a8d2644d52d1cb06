"""Reads a folder's tensors into a ModernBERT encoder.

Called through `shared.modeling.encoders`. Refuses what is missing, misshaped or unknown, naming it; guesses nothing.
"""

from pathlib import Path

import torch
from torch import Tensor

from shared.modeling.encoder_layers import ACTIVATIONS, LayerNorm
from shared.modeling.linear import LinearLayer, make_linear
from shared.modeling.modernbert import ModernBertEncoder, ModernBertLayer
from shared.modeling.modernbert_config import ModernBertConfig, read_modernbert_config
from shared.modeling.rope import rope_table
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

_PREFIX = "model."
_HEADS = ("head.", "decoder.", "classifier.")
"""What a head's tensors begin with; they are none of the encoder's business."""


def load_modernbert(folder: Path, dtype: torch.dtype, device: torch.device) -> ModernBertEncoder:
    """The encoder in `folder`.

    Raises:
        ModelFolderError: config or weights are missing, of the wrong shape or not supported.
    """
    config = read_modernbert_config(read_json(folder / "config.json"))
    with WeightFiles(folder) as files:
        encoder = _ModernBertLoader(config, files, dtype, device).load()
        left = sorted(name for name in files.unread() if not name.startswith(_HEADS))
    if left:
        raise ModelFolderError(
            f"the weights have {len(left)} tensors that the encoder does not know, such as {left[0]}"
        )
    return encoder


class _ModernBertLoader:
    def __init__(self, config: ModernBertConfig, files: WeightFiles, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._files = files
        self._dtype = dtype
        self._device = device
        self._prefix = _PREFIX if any(name.startswith(_PREFIX) for name in files.names()) else ""

    def load(self) -> ModernBertEncoder:
        config = self._config
        words = self._read("embeddings.tok_embeddings.weight", config.vocab_size, config.hidden_size)
        layers = [self._layer(index, is_local=is_local) for index, is_local in enumerate(config.is_local)]
        whole, near = (rope_table(rope, config.max_positions, torch.float32, self._device) for rope in config.ropes)
        norms = (self._norm("embeddings.norm"), self._norm("final_norm"))
        return ModernBertEncoder(config, words, norms, layers, (whole, near))

    def _layer(self, index: int, *, is_local: bool) -> ModernBertLayer:
        config, prefix = self._config, f"layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        return ModernBertLayer(
            attention_norm=self._norm(f"{prefix}attn_norm") if index > 0 else None,
            qkv=self._linear(f"{prefix}attn.Wqkv", hidden, 3 * hidden, has_bias=config.has_attention_bias),
            attention_out=self._linear(f"{prefix}attn.Wo", hidden, hidden, has_bias=config.has_attention_bias),
            norm=self._norm(f"{prefix}mlp_norm"),
            up_gate=self._linear(f"{prefix}mlp.Wi", hidden, 2 * inner, has_bias=config.has_mlp_bias),
            down=self._linear(f"{prefix}mlp.Wo", inner, hidden, has_bias=config.has_mlp_bias),
            activation=ACTIVATIONS[config.activation],
            is_local=is_local,
        )

    def _linear(self, name: str, num_in: int, num_out: int, *, has_bias: bool) -> LinearLayer:
        bias = self._read(f"{name}.bias", num_out) if has_bias else None
        return make_linear(self._read(f"{name}.weight", num_out, num_in), bias)

    def _norm(self, name: str) -> LayerNorm:
        size = self._config.hidden_size
        bias = self._read(f"{name}.bias", size) if self._config.has_norm_bias else None
        return LayerNorm(self._read(f"{name}.weight", size), bias, self._config.norm_eps)

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._files.read(self._prefix + name, shape, self._dtype).to(self._device)
