"""What a model's rows of numbers say: how relevant a document is to a query, by each kind of score, and which label a text has.

Made by `loading`, used through the handle by `prepare` and by the routes. A scorer says which sequences the model has to see
and what their rows mean; it does not run the model and must not import torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from shared.batching.model_thread import Rows
from shared.errors import InvalidRequestError
from shared.text.label_preparer import LabelPreparer
from shared.text.pair_preparer import PairPreparer, PairRules
from shared.text.preparer import Prepared, TextPreparer, Truncate

Activation = Literal["sigmoid", "identity"]
Numbers = np.ndarray[Any, np.dtype[np.float64]]


class Scorer(Protocol):
    """One kind of score for pairs; both methods are pure."""

    def prepare(self, queries: Sequence[str], documents: Sequence[str], rules: PairRules) -> Prepared[Any]:
        """What the model has to see for each document with its own query or with the only one.

        Raises:
            InvalidRequestError: a text cannot be scored; names the field.
        """
        ...

    def scores(self, rows: Rows, num_pairs: int, *, is_raw: bool) -> list[float]:
        """One score for each pair, from the rows of the prepared sequences."""
        ...


@dataclass(frozen=True)
class BiEncoderScorer:
    """Cosine of the vectors of query and document; a query that all documents share goes through the model once."""

    texts: TextPreparer

    def prepare(self, queries: Sequence[str], documents: Sequence[str], rules: PairRules) -> Prepared[list[int]]:
        """The queries, then the documents."""
        if rules.instruction is not None:
            raise InvalidRequestError("instruction is not supported by this model", param="instruction")
        if rules.max_document_tokens is not None:
            raise InvalidRequestError(
                "max_tokens_per_doc is not supported by this model, which reads a document alone; truncate cuts to its maximum",
                param="max_tokens_per_doc",
            )
        prompts = self.texts.prompts
        firsts = self.texts.from_texts(queries, prompt=prompts.of_kind("query"), param=rules.query_param)
        seconds = self.texts.from_texts(
            documents, prompt=prompts.of_kind("document"), param=rules.document_param, truncate=rules.truncate
        )
        return Prepared([*firsts.sequences, *seconds.sequences], seconds.cut)

    def scores(self, rows: Rows, num_pairs: int, *, is_raw: bool) -> list[float]:
        """Semantics: q · d / (‖q‖ ‖d‖), 0 where a norm is 0; there is no activation, so raw scores are the same."""
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        units = rows / np.maximum(norms, 1e-12)
        queries, documents = units[:-num_pairs], units[-num_pairs:]
        cosines: list[float] = np.clip(
            (queries * documents).sum(axis=1), -1, 1
        ).tolist()  # rounding may carry it past 1
        return cosines


@dataclass(frozen=True)
class PairScorer:
    """The one number that a model gives for a pair it reads as a whole."""

    pairs: PairPreparer
    activation: Activation

    def prepare(self, queries: Sequence[str], documents: Sequence[str], rules: PairRules) -> Prepared[Any]:
        """One sequence for each pair."""
        return self.pairs.from_pairs(queries, documents, rules)

    def scores(self, rows: Rows, num_pairs: int, *, is_raw: bool) -> list[float]:
        """The activation of each row's only number, or the number itself."""
        numbers = rows[:, 0].astype(np.float64)
        activated = numbers if is_raw or self.activation == "identity" else sigmoid(numbers)
        scores: list[float] = activated.tolist()
        return scores


@dataclass(frozen=True)
class Labeler:
    """The probabilities of a classifier's labels.

    Attributes:
        has_independent_labels: several may hold at once, so each has its own probability; otherwise they add up to 1.
    """

    texts: LabelPreparer
    labels: tuple[str, ...]
    has_independent_labels: bool

    def prepare(self, texts: Sequence[str], truncate: Truncate) -> Prepared[Any]:
        """One sequence for each text."""
        return self.texts.from_texts(texts, param="input", truncate=truncate)

    def numbers(self, rows: Rows, *, is_raw: bool) -> Numbers:
        """Probabilities, or the rows themselves, [texts, labels]."""
        wide = rows.astype(np.float64)
        if is_raw:
            return wide
        return sigmoid(wide) if self.has_independent_labels else softmax(wide)


@dataclass(frozen=True)
class Scoring:
    """What the loaded model can do: score pairs, name labels, or both."""

    max_tokens: int
    scorer: Scorer | None
    labeler: Labeler | None

    def pairs(self) -> Scorer:
        """To score pairs with.

        Raises:
            InvalidRequestError: the model is a classifier of several labels.
        """
        if self.scorer is None:
            count = len(self.labeler.labels) if self.labeler else 0
            raise InvalidRequestError(
                f"The model has {count} labels, so it gives a pair no score; ask /classify", param="model"
            )
        return self.scorer

    def labels(self) -> Labeler:
        """To name labels with.

        Raises:
            InvalidRequestError: the model has none.
        """
        if self.labeler is None:
            raise InvalidRequestError("The model is no classifier, so it has no labels", param="model")
        return self.labeler


def sigmoid(x: Numbers) -> Numbers:
    """1 / (1 + exp(-x)), without overflow and right to the last digits where x is far below 0."""
    small = np.exp(-np.abs(x))
    result: Numbers = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return result


def softmax(x: Numbers) -> Numbers:
    """exp(x) over its sum in each row, without overflow."""
    small = np.exp(x - x.max(axis=1, keepdims=True))
    result: Numbers = small / small.sum(axis=1, keepdims=True)
    return result
