"""How relevant each document is to the query, by the kinds of score that `--score-type` names.

Used by `app` (to choose one) and by `prepare`. A scorer says which sequences the model has to see and what their rows mean;
it does not run the model and must not import torch.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from shared.batching.model_thread import Rows
from shared.text.preparer import Prepared, TextPreparer


class Scorer(Protocol):
    """One kind of score; both methods are pure."""

    def prepare(self, preparer: TextPreparer, query: str, documents: Sequence[str]) -> Prepared[list[int]]:
        """What the model has to see.

        Raises:
            InvalidRequestError: the query or a document cannot be scored; names the field.
        """
        ...

    def scores(self, rows: Rows) -> list[float]:
        """One score for each document, from the rows of the prepared sequences."""
        ...


class BiEncoderScorer:
    """Cosine of the query's vector and each document's; the query goes through the model once."""

    def prepare(self, preparer: TextPreparer, query: str, documents: Sequence[str]) -> Prepared[list[int]]:
        """The query, then the documents."""
        prompts = preparer.prompts
        first = preparer.from_texts([query], prompt=prompts.of_kind("query"), param="query")
        others = preparer.from_texts(documents, prompt=prompts.of_kind("document"), param="documents")
        return Prepared([*first.sequences, *others.sequences])

    def scores(self, rows: Rows) -> list[float]:
        """Semantics: rows[1:] · rows[0] / (‖rows[1:]‖ ‖rows[0]‖); 0 where a norm is 0."""
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        units = rows / np.maximum(norms, 1e-12)
        cosines: list[float] = np.clip(units[1:] @ units[0], -1, 1).tolist()  # rounding may carry it past 1
        return cosines


SCORERS: Mapping[str, Scorer] = {"bi-encoder": BiEncoderScorer()}
