"""The reranker's own paths, all three the same: they parse, ask the handle, sort and answer.

Included by `app`. Must not import torch; errors are turned into answers by `shared.http`.
"""

import uuid
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from services.reranker.prepare import document_texts, prepare_scoring
from services.reranker.scorers import Scorer
from shared.contracts.rerank import (
    API_VERSION,
    DOCUMENTS_PER_SEARCH_UNIT,
    RerankDocument,
    RerankMeta,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankUsage,
)
from shared.http.app import json_response
from shared.http.body import body_schema, json_body
from shared.http.disconnect import until_disconnect
from shared.http.encoder_handle import EncoderHandle
from shared.text.preparer import TextPreparer

PATHS = ("/v1/rerank", "/rerank", "/v2/rerank")


def rerank_router(handle: EncoderHandle[TextPreparer], scorer: Scorer, *, max_documents: int) -> APIRouter:
    """`POST` on every path that clients use for reranking."""
    router = APIRouter()

    async def rerank(http: Request, request: Annotated[RerankRequest, Depends(json_body(RerankRequest))]) -> Response:
        handle.check_model(request.model)
        rows, num_tokens, _ = await until_disconnect(
            http,
            handle.encode(lambda preparer: prepare_scoring(request, preparer, scorer, max_documents=max_documents)),
        )
        results = rank(request, scorer.scores(rows))
        return json_response(_response(request, results, handle.name, num_tokens), exclude_none=True)

    for path in PATHS:
        router.add_api_route(path, rerank, methods=["POST"], openapi_extra=body_schema(RerankRequest))
    return router


def rank(request: RerankRequest, scores: Sequence[float]) -> list[RerankResult]:
    """The documents by falling score, ties by index; as many as were asked for."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: request.top_n]
    texts = document_texts(request) if request.return_documents else None
    return [
        RerankResult(
            index=index,
            relevance_score=scores[index],
            document=RerankDocument(text=texts[index]) if texts else None,
        )
        for index in order
    ]


def _response(request: RerankRequest, results: list[RerankResult], model: str, num_tokens: int) -> RerankResponse:
    num_search_units = -(-len(request.documents) // DOCUMENTS_PER_SEARCH_UNIT)
    return RerankResponse(
        id=f"rerank-{uuid.uuid4().hex}",
        model=model,
        results=results,
        usage=RerankUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        meta=RerankMeta(api_version=API_VERSION, billed_units={"search_units": num_search_units}),
    )
