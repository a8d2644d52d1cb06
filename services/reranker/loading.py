"""Finds out what kind of scorer a folder holds and loads it; torch comes in here, when the model thread loads.

Called by `app`. Importing this module must not import torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.reranker.scorers import Activation, BiEncoderScorer, Labeler, PairScorer, Scoring
from services.reranker.settings import RerankerSettings
from shared.batching.model_thread import BatchModel, ForwardSpec, Launched
from shared.observability.logging import get_logger
from shared.settings.errors import ModelFolderError, StartError
from shared.settings.model_folder import find_model_folder, read_json, read_json_list
from shared.text.judge_preparer import JudgePreparer
from shared.text.label_preparer import LabelPreparer
from shared.text.pair_preparer import FramedPairPreparer

log = get_logger(__name__)


@dataclass(frozen=True)
class ScoringModel:
    """A loaded model and what it can do; the first belongs to the model thread."""

    model: BatchModel
    preparer: Scoring

    @property
    def forward(self) -> ForwardSpec:
        """See `BatchModel`."""
        return self.model.forward

    def launch(self, batch: Sequence[Any]) -> Launched:
        """See `BatchModel`."""
        return self.model.launch(batch)


def load_scoring_model(settings: RerankerSettings) -> ScoringModel:
    """Read the folder of `settings.model`, as `settings.score_type` says or its architecture.

    Raises:
        ModelFolderError: the folder is missing, broken or asks for what is not supported.
        StartError: folder and settings do not fit together.
    """
    declared = settings.score_type
    kind = _kind_of(find_model_folder(settings.model)) if declared == "auto" else declared
    if settings.activation is not None and kind != "cross-encoder":
        raise StartError(f"--activation is for cross-encoders; the score type here is {kind}")
    return _LOADERS[kind](settings)


def _kind_of(folder: Path) -> str:
    architecture = str((read_json(folder / "config.json").get("architectures") or [""])[0])
    if architecture.endswith("ForSequenceClassification"):
        return "cross-encoder"
    path = folder / "modules.json"
    names = [str(entry.get("type", "")) for entry in read_json_list(path)] if path.is_file() else []
    has_pooling = any(name.endswith("Pooling") for name in names)
    return "qwen3-reranker" if architecture == "Qwen3ForCausalLM" and not has_pooling else "bi-encoder"


def _load_bi_encoder(settings: RerankerSettings) -> ScoringModel:
    from shared.modeling.text_encoder import load_text_encoder

    encoder = load_text_encoder(settings)
    texts = encoder.preparer
    return ScoringModel(encoder, Scoring(texts.max_tokens, BiEncoderScorer(texts), labeler=None))


def _load_cross_encoder(settings: RerankerSettings) -> ScoringModel:
    from shared.modeling.sequence_classifier import load_sequence_classifier

    loaded = load_sequence_classifier(settings)
    tokenizer, max_tokens = loaded.setup.tokenizer, loaded.setup.max_tokens
    is_single = len(loaded.labels) == 1
    labeler = Labeler(LabelPreparer(tokenizer, max_tokens), loaded.labels, is_single or loaded.is_multi_label)
    scorer = None
    if is_single:
        frame = tokenizer.pair_frame()
        if frame is None:
            raise ModelFolderError("the tokenizer puts nothing between the texts of a pair, so the model cannot rerank")
        activation = settings.activation or _score_activation(loaded.activation)
        log.info("scoring", score_type="cross-encoder", activation=activation)
        scorer = PairScorer(FramedPairPreparer(tokenizer, max_tokens, frame), activation)
    elif settings.activation is not None:
        raise StartError(f"--activation is for models with one label; this one has {len(loaded.labels)}")
    return ScoringModel(loaded.scorer, Scoring(max_tokens, scorer, labeler))


def _score_activation(declared: str) -> Activation:
    if declared == "sigmoid":
        return "sigmoid"
    if declared == "identity":
        return "identity"
    raise ModelFolderError(f"the score's activation {declared} is not supported; choose another with --activation")


def _load_qwen3_reranker(settings: RerankerSettings) -> ScoringModel:
    from shared.modeling.yes_no_scorer import load_yes_no_scorer

    model, setup = load_yes_no_scorer(settings)
    scorer = PairScorer(JudgePreparer(setup.tokenizer, setup.max_tokens), "sigmoid")
    return ScoringModel(model, Scoring(setup.max_tokens, scorer, labeler=None))


_LOADERS: Mapping[str, Callable[[RerankerSettings], ScoringModel]] = {
    "bi-encoder": _load_bi_encoder,
    "cross-encoder": _load_cross_encoder,
    "qwen3-reranker": _load_qwen3_reranker,
}
