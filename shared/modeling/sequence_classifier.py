"""A folder saved for sequence classification made ready: one text or a pair in, a number for each label out.

Made by `load_sequence_classifier` on the model thread of the reranker. Rows are logits; what they mean is said by the reranker.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.modeling.classification_head import load_head
from shared.modeling.encoder_setup import EncoderSetup, open_encoder
from shared.modeling.ragged import RaggedBatch
from shared.modeling.transfers import HostCopy
from shared.modeling.vector_modules import DenseActivation, read_activation
from shared.modeling.weights import WeightFiles
from shared.observability.logging import get_logger
from shared.settings.encoder import EncoderSettings
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json
from shared.text.frames import TypedTokens

log = get_logger(__name__)

Head = Callable[[Tensor, RaggedBatch], Tensor]
"""[T, H] to [S, num_labels] float32."""


class SequenceScorer:
    """An encoder and a head: sequences in, one row of numbers for each out."""

    def __init__(self, setup: EncoderSetup, head: Head, *, has_types: bool) -> None:
        self.forward = setup.forward
        self._encoder = setup.encoder
        self._device = setup.device
        self._head = head
        self._has_types = has_types

    @torch.inference_mode()
    def launch(self, batch: Sequence[TypedTokens]) -> HostCopy:
        """Logits of `batch`, [len(batch), num_labels] float32."""
        types = [sequence.type_ids for sequence in batch] if self._has_types else None
        ragged = RaggedBatch.from_token_ids([sequence.token_ids for sequence in batch], self._device, types)
        return HostCopy(self._head(self._encoder.encode(ragged), ragged))


@dataclass(frozen=True)
class LoadedClassifier:
    """A classifier and what its folder says beside the weights.

    Attributes:
        labels: what each number of a row stands for.
        activation: what sentence-transformers puts on the logits of this folder.
        is_multi_label: several labels may hold at once, so each has its own probability.
    """

    scorer: SequenceScorer
    setup: EncoderSetup
    labels: tuple[str, ...]
    activation: DenseActivation
    is_multi_label: bool


def load_sequence_classifier(settings: EncoderSettings) -> LoadedClassifier:
    """Read the folder of `settings.model`.

    Raises:
        ModelFolderError: the folder is missing, broken or asks for what is not supported.
        StartError: folder and settings do not fit together.
    """
    setup = open_encoder(settings)
    config = read_json(setup.folder / "config.json")
    with WeightFiles(setup.folder) as files:
        head = load_head(files, config, config["architectures"][0], setup.encoder.hidden_size, setup.device)
    scorer = SequenceScorer(setup, head, has_types=_has_types(setup))
    loaded = LoadedClassifier(
        scorer,
        setup,
        _labels(config, head.num_labels),
        _activation(setup.folder, config, head.num_labels),
        config.get("problem_type") == "multi_label_classification",
    )
    log.info("model_loaded", labels=list(loaded.labels), activation=loaded.activation, **setup.describe())
    return loaded


def _has_types(setup: EncoderSetup) -> bool:
    """Whether the model is shown the types of tokens: it may know them and its tokenizer withhold them all the same."""
    path = setup.folder / "tokenizer_config.json"
    inputs = (read_json(path) if path.is_file() else {}).get("model_input_names")
    return setup.encoder.num_token_types > 1 and (not inputs or "token_type_ids" in inputs)


def _labels(config: Mapping[str, Any], num_labels: int) -> tuple[str, ...]:
    declared = config.get("id2label") or {}
    if declared and len(declared) != num_labels:
        raise ModelFolderError(f"config.json names {len(declared)} labels, the head has {num_labels}")
    return tuple(str(declared.get(str(index), f"LABEL_{index}")) for index in range(num_labels))


def _activation(folder: Path, config: Mapping[str, Any], num_labels: int) -> DenseActivation:
    """By the places and the default of sentence-transformers' CrossEncoder."""
    path = folder / "config_sentence_transformers.json"
    declared = (
        (read_json(path) if path.is_file() else {}).get("activation_fn")
        or (config.get("sentence_transformers") or {}).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    return read_activation(declared, "the score", default="sigmoid" if num_labels == 1 else "identity")
