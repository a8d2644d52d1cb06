"""The heads that turn a sequence's token states into one number for each label, as each family's checkpoint has them.

Loaded by `sequence_classifier`; computed in fp32 whatever the encoder's dtype, since a score is read to its last digits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.decoder_encoder import DECODERS
from shared.modeling.encoder_layers import ACTIVATIONS, Activation, LayerNorm
from shared.modeling.pooling import pool
from shared.modeling.ragged import RaggedBatch
from shared.modeling.vector_modules import Pooling
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError


@dataclass(frozen=True)
class HeadNames:
    """Where a family keeps its head; `classifier_activation` and `classifier_pooling` in config.json go before what is said here.

    Attributes:
        inner: projection before the activation; None where there is none.
        norm: norm behind the activation.
        outer: projection to the labels.
    """

    outer: str
    inner: str | None = None
    activation: str = "tanh"
    norm: str | None = None
    pooling: Pooling = "cls"


_ROBERTA = HeadNames(inner="classifier.dense", outer="classifier.out_proj")
HEADS: Mapping[str, HeadNames] = {
    "Bert": HeadNames(inner="bert.pooler.dense", outer="classifier"),
    "Roberta": _ROBERTA,
    "XLMRoberta": _ROBERTA,
    "Camembert": _ROBERTA,
    "MPNet": _ROBERTA,
    "DistilBert": HeadNames(inner="pre_classifier", activation="relu", outer="classifier"),
    "ModernBert": HeadNames(inner="head.dense", activation="gelu", norm="head.norm", outer="classifier"),
    **dict.fromkeys(DECODERS, HeadNames(outer="score", pooling="last")),
}
"""Start of the architecture's name → its head."""


@dataclass(frozen=True)
class _Projection:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class ClassificationHead:
    """One pooled state per sequence, then projections.

    Attributes:
        num_labels: numbers that come out for each sequence.
    """

    pooling: Pooling
    inner: _Projection | None
    activation: Activation
    norm: LayerNorm | None
    outer: _Projection

    @property
    def num_labels(self) -> int:
        """Numbers for each sequence."""
        return self.outer.weight.shape[0]

    def __call__(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """[T, H] in any float dtype to [S, num_labels] float32."""
        x = pool(hidden, batch, [self.pooling])
        if self.inner is not None:
            x = self.activation(self.inner(x))
        return self.outer(x if self.norm is None else self.norm(x))


def load_head(
    files: WeightFiles, config: Mapping[str, Any], architecture: str, hidden_size: int, device: torch.device
) -> ClassificationHead:
    """The head of a folder saved as `{family}ForSequenceClassification`.

    Raises:
        ModelFolderError: a tensor is missing or misshaped, or the config asks for what is not supported.
    """
    names = HEADS.get(architecture.removesuffix("ForSequenceClassification"))
    if names is None:
        raise ModelFolderError(
            f"the head of {architecture} is not supported; supported are those of {', '.join(HEADS)}"
        )
    loader = _HeadLoader(files, hidden_size, device)
    activation = str(config.get("classifier_activation") or names.activation)
    if activation not in ACTIVATIONS:
        raise ModelFolderError(f"config.json: classifier_activation {activation} is not supported")
    eps = float(config.get("norm_eps") or 1e-5)
    return ClassificationHead(
        pooling=_pooling(config, names),
        inner=None if names.inner is None else loader.projection(names.inner, hidden_size),
        activation=ACTIVATIONS[activation],
        norm=None if names.norm is None else loader.norm(names.norm, eps),
        outer=loader.projection(names.outer, _num_labels(files, names.outer)),
    )


def _num_labels(files: WeightFiles, outer: str) -> int:
    name = f"{outer}.weight"
    if name not in files:
        raise ModelFolderError(f"tensor {name} is missing, the head for sequence classification")
    return files.shape(name)[0]


def _pooling(config: Mapping[str, Any], names: HeadNames) -> Pooling:
    declared = config.get("classifier_pooling") or names.pooling
    kinds: Sequence[Pooling] = ("cls", "mean", "last")
    for kind in kinds:
        if kind == declared:
            return kind
    raise ModelFolderError(f"config.json: classifier_pooling {declared} is not supported")


@dataclass(frozen=True)
class _HeadLoader:
    files: WeightFiles
    hidden_size: int
    device: torch.device

    def projection(self, name: str, num_out: int) -> _Projection:
        """Weight and, where there is one, bias."""
        has_bias = f"{name}.bias" in self.files
        return _Projection(
            self._read(f"{name}.weight", num_out, self.hidden_size),
            self._read(f"{name}.bias", num_out) if has_bias else None,
        )

    def norm(self, name: str, eps: float) -> LayerNorm:
        """Weight and, where there is one, bias."""
        bias = self._read(f"{name}.bias", self.hidden_size) if f"{name}.bias" in self.files else None
        return LayerNorm(self._read(f"{name}.weight", self.hidden_size), bias, eps)

    def _read(self, name: str, *shape: int) -> Tensor:
        return self.files.read(name, shape, torch.float32).to(self.device)
