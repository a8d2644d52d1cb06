"""From scores to the answer in the shape that a client reads; pure functions, no model and no HTTP.

Called by the routes.
"""

import time
import uuid
from collections.abc import Sequence

from pydantic import TypeAdapter

from services.reranker.prepare import PairJob
from services.reranker.scorers import Numbers
from shared.contracts.rerank import (
    DOCUMENTS_PER_SEARCH_UNIT,
    ApiVersion,
    CohereRerankResponse,
    RerankDocument,
    RerankMeta,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankUsage,
    TeiRerankRequest,
    TeiRerankResult,
)
from shared.contracts.score import ClassifyItem, ClassifyResponse, ScoreItem, ScoreResponse, ScoreUsage

_TEI_RESULTS = TypeAdapter(list[TeiRerankResult])


def best_first(scores: Sequence[float], top_n: int | None) -> list[int]:
    """Places by falling score, ties by place; at most `top_n`."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:top_n]


def tei_answer(request: TeiRerankRequest, scores: Sequence[float]) -> bytes:
    """TEI's bare array."""
    results = [
        TeiRerankResult(index=index, score=scores[index], text=request.texts[index] if request.return_text else None)
        for index in best_first(scores, None)
    ]
    return _TEI_RESULTS.dump_json(results, exclude_none=True)


def rerank_results(request: RerankRequest, documents: Sequence[str], scores: Sequence[float]) -> list[RerankResult]:
    """The documents by falling score; as many as were asked for."""
    return [
        RerankResult(
            index=index,
            relevance_score=scores[index],
            document=RerankDocument(text=documents[index]) if request.return_documents else None,
        )
        for index in best_first(scores, request.top_n)
    ]


def cohere_answer(results: list[RerankResult], meta: RerankMeta) -> CohereRerankResponse:
    """As Cohere's v2 API has it."""
    return CohereRerankResponse(id=_id("rerank"), results=results, meta=meta)


def rerank_answer(results: list[RerankResult], meta: RerankMeta, model: str, num_tokens: int) -> RerankResponse:
    """The superset for all other clients."""
    usage = RerankUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    return RerankResponse(id=_id("rerank"), model=model, results=results, usage=usage, meta=meta)


def rerank_meta(job: PairJob, cut: Sequence[int], api_version: str) -> RerankMeta:
    """What Cohere's clients read of the work done."""
    num_search_units = -(-len(job.documents) // DOCUMENTS_PER_SEARCH_UNIT)
    return RerankMeta(
        api_version=ApiVersion(version=api_version),
        billed_units={"search_units": num_search_units},
        warnings=[f"{job.rules.document_param}.{index} was too long and was cut" for index in cut] or None,
    )


def score_answer(scores: Sequence[float], cut: Sequence[int], model: str, num_tokens: int) -> ScoreResponse:
    """Scores in the order of the pairs."""
    return ScoreResponse(
        id=_id("score"),
        created=int(time.time()),
        model=model,
        data=[ScoreItem(index=index, score=score) for index, score in enumerate(scores)],
        usage=ScoreUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        truncated=list(cut) or None,
    )


def classify_answer(
    numbers: Numbers, labels: Sequence[str], cut: Sequence[int], model: str, num_tokens: int
) -> ClassifyResponse:
    """Labels in the order of the texts; `numbers` is [texts, labels]."""
    likeliest = numbers.argmax(axis=1).tolist()
    rows: list[list[float]] = numbers.tolist()
    items = [
        ClassifyItem(index=index, label=labels[best], probs=row, num_classes=len(labels))
        for index, (best, row) in enumerate(zip(likeliest, rows, strict=True))
    ]
    return ClassifyResponse(
        id=_id("classify"),
        created=int(time.time()),
        model=model,
        data=items,
        usage=ScoreUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        truncated=list(cut) or None,
    )


def _id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"
