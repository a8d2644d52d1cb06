"""From requests in their several words to one kind of job, and from jobs to what the model has to see.

Called by the routes; `prepare_…` run off the event loop. Must not import torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.reranker.scorers import Scoring
from shared.contracts.rerank import RerankRequest, TeiRerankRequest
from shared.contracts.score import ClassifyRequest, ScoreRequest, Texts
from shared.errors import InvalidRequestError
from shared.text.pair_preparer import PairRules
from shared.text.preparer import Prepared, Truncate


@dataclass(frozen=True)
class PairJob:
    """Pairs to score.

    Attributes:
        queries: one for all documents, or one for each.
        is_raw: the model's own numbers are wanted, without activation.
    """

    queries: list[str]
    documents: list[str]
    rules: PairRules
    is_raw: bool


def rerank_job(request: RerankRequest | TeiRerankRequest) -> PairJob:
    """One query with all documents."""
    if isinstance(request, TeiRerankRequest):
        rules = PairRules("query", "texts", truncate=_tei_truncate(request))
        return PairJob([request.query], request.texts, rules, bool(request.raw_scores))
    documents = [document if isinstance(document, str) else document.text for document in request.documents]
    rules = PairRules(
        "query",
        "documents",
        truncate=request.truncate or "none",
        max_document_tokens=request.max_tokens_per_doc,
        instruction=request.instruction,
    )
    return PairJob([request.query], documents, rules, bool(request.raw_scores))


def score_job(request: ScoreRequest) -> PairJob:
    """One text with each of several, or each with its own.

    Raises:
        InvalidRequestError: neither one first text nor as many as second ones.
    """
    queries, documents = as_list(request.text_1), as_list(request.text_2)
    if len(queries) not in (1, len(documents)):
        raise InvalidRequestError(
            f"text_1 has {len(queries)} entries and text_2 has {len(documents)}; text_1 must have one, or as many as text_2",
            param="text_1",
        )
    rules = PairRules("text_1", "text_2", truncate=request.truncate or "none", instruction=request.instruction)
    return PairJob(queries, documents, rules, bool(request.raw_scores))


def prepare_pairs(job: PairJob, scoring: Scoring, *, max_documents: int) -> Prepared[Any]:
    """The sequences to run.

    Raises:
        InvalidRequestError: there are no documents, too many, or one that cannot be scored; names the field.
    """
    scorer = scoring.pairs()
    check_count(job.documents, max_documents, job.rules.document_param)
    return scorer.prepare(job.queries, job.documents, job.rules)


def prepare_labels(request: ClassifyRequest, scoring: Scoring, *, max_documents: int) -> Prepared[Any]:
    """The sequences to run.

    Raises:
        InvalidRequestError: there are no texts, too many, or one that cannot be read; names the field.
    """
    labeler = scoring.labels()
    texts = as_list(request.input)
    check_count(texts, max_documents, "input")
    return labeler.prepare(texts, request.truncate or "none")


def check_count(texts: Sequence[str], max_documents: int, param: str) -> None:
    """See that there is something to do, and not too much.

    Raises:
        InvalidRequestError: there is nothing or too much; names `param`.
    """
    if not texts:
        raise InvalidRequestError(f"{param} is an empty list", param=param)
    if len(texts) > max_documents:
        raise InvalidRequestError(f"{param} has {len(texts)} entries; the limit is {max_documents}", param=param)


def as_list(texts: Texts) -> list[str]:
    """One text as a list of one."""
    return [texts] if isinstance(texts, str) else texts


def _tei_truncate(request: TeiRerankRequest) -> Truncate:
    direction = (request.truncation_direction or "right").lower()
    if not request.truncate:
        if request.truncation_direction is not None:
            raise InvalidRequestError("truncation_direction needs truncate", param="truncation_direction")
        return "none"
    return "start" if direction == "left" else "end"
