"""The reranker's own paths: they parse, ask the handle and render. What a body looks like decides what its answer looks like.

Included by `app`. Must not import torch; errors are turned into answers by `shared.http`.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from services.reranker.prepare import PairJob, prepare_labels, prepare_pairs, rerank_job, score_job
from services.reranker.render import (
    classify_answer,
    cohere_answer,
    rerank_answer,
    rerank_meta,
    rerank_results,
    score_answer,
    tei_answer,
)
from services.reranker.scorers import Scoring
from shared.contracts.rerank import RerankRequest, TeiRerankRequest
from shared.contracts.score import ClassifyRequest, ScoreRequest
from shared.http.app import json_response
from shared.http.body import body_schema, has_field, json_body
from shared.http.deadline import seconds_left
from shared.http.disconnect import until_disconnect
from shared.http.encoder_handle import EncoderHandle

COHERE_V2_PATH = "/v2/rerank"
AnyRerankRequest = RerankRequest | TeiRerankRequest
PATHS = ("/v1/rerank", "/rerank", COHERE_V2_PATH)


def reranker_router(handle: EncoderHandle[Scoring], *, max_documents: int) -> APIRouter:
    """`POST` on every path that clients use for reranking, `/score` and `/classify`."""
    router = APIRouter()
    pairs = PairRoute(handle, max_documents)

    async def rerank(http: Request, request: Annotated[AnyRerankRequest, Depends(rerank_body)]) -> Response:
        return await pairs.rerank(http, request)

    for path in PATHS:
        router.add_api_route(path, rerank, methods=["POST"], openapi_extra=body_schema(RerankRequest))

    @router.post("/score", openapi_extra=body_schema(ScoreRequest))
    async def score(http: Request, request: Annotated[ScoreRequest, Depends(json_body(ScoreRequest))]) -> Response:
        return await pairs.score(http, request)

    @router.post("/classify", openapi_extra=body_schema(ClassifyRequest))
    async def classify(
        http: Request, request: Annotated[ClassifyRequest, Depends(json_body(ClassifyRequest))]
    ) -> Response:
        handle.check_model(request.model)
        time_left_s = seconds_left(http.headers)
        rows, num_tokens, cut = await until_disconnect(
            http,
            handle.encode(lambda scoring: prepare_labels(request, scoring, max_documents=max_documents)),
            timeout_s=time_left_s,
        )
        labeler = handle.preparer.labels()
        numbers = labeler.numbers(rows, is_raw=bool(request.raw_scores))
        body = classify_answer(numbers, labeler.labels, cut, handle.name, num_tokens)
        return json_response(body, exclude_none=True)

    return router


async def rerank_body(http: Request) -> AnyRerankRequest:
    """TEI's request where there are `texts`, everybody else's otherwise.

    Raises:
        InvalidRequestError: it is not of that shape.
    """
    if await has_field(http, "texts"):
        return await json_body(TeiRerankRequest)(http)
    return await json_body(RerankRequest)(http)


class PairRoute:
    """What reranking and scoring share: pairs go in, scores come out."""

    def __init__(self, handle: EncoderHandle[Scoring], max_documents: int) -> None:
        self._handle = handle
        self._max_documents = max_documents

    async def rerank(self, http: Request, request: AnyRerankRequest) -> Response:
        """One query with its documents, best first."""
        self._handle.check_model(request.model)
        job = rerank_job(request)
        scores, num_tokens, cut = await self._scores(http, job)
        if isinstance(request, TeiRerankRequest):
            return Response(tei_answer(request, scores), media_type="application/json")
        results = rerank_results(request, job.documents, scores)
        if http.url.path == COHERE_V2_PATH:
            return json_response(cohere_answer(results, rerank_meta(job, cut, "2")), exclude_none=True)
        body = rerank_answer(results, rerank_meta(job, cut, "1"), self._handle.name, num_tokens)
        return json_response(body, exclude_none=True)

    async def score(self, http: Request, request: ScoreRequest) -> Response:
        """Pairs in the order of the request."""
        self._handle.check_model(request.model)
        scores, num_tokens, cut = await self._scores(http, score_job(request))
        return json_response(score_answer(scores, cut, self._handle.name, num_tokens), exclude_none=True)

    async def _scores(self, http: Request, job: PairJob) -> tuple[list[float], int, tuple[int, ...]]:
        time_left_s = seconds_left(http.headers)
        rows, num_tokens, cut = await until_disconnect(
            http,
            self._handle.encode(lambda scoring: prepare_pairs(job, scoring, max_documents=self._max_documents)),
            timeout_s=time_left_s,
        )
        return self._handle.preparer.pairs().scores(rows, len(job.documents), is_raw=job.is_raw), num_tokens, cut
