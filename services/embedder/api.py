"""The embedder's own path: it parses, asks the handle and renders.

Included by `app`. Must not import torch; errors are turned into answers by `shared.http`.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from services.embedder.prepare import prepare_inputs
from services.embedder.render import render_embeddings
from shared.contracts.embeddings import EmbeddingRequest, EmbeddingUsage
from shared.http.body import body_schema, json_body
from shared.http.deadline import seconds_left
from shared.http.disconnect import until_disconnect
from shared.http.encoder_handle import Encoded, EncoderHandle
from shared.text.preparer import TextPreparer


def embeddings_router(handle: EncoderHandle[TextPreparer]) -> APIRouter:
    """`POST /v1/embeddings`."""
    router = APIRouter()

    @router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingRequest))
    async def create_embeddings(
        http: Request, request: Annotated[EmbeddingRequest, Depends(json_body(EmbeddingRequest))]
    ) -> Response:
        handle.check_model(request.model)
        time_left_s = seconds_left(http.headers)
        body = await until_disconnect(http, _embed(handle, request), timeout_s=time_left_s)
        return Response(body, media_type="application/json")

    return router


async def _embed(handle: EncoderHandle[TextPreparer], request: EmbeddingRequest) -> bytes:
    encoded = await handle.encode(lambda preparer: prepare_inputs(request, preparer))
    return await handle.off_loop(lambda: _render(handle, request, encoded))


def _render(handle: EncoderHandle[TextPreparer], request: EmbeddingRequest, encoded: Encoded) -> bytes:
    rows = encoded.rows
    if request.dimensions is not None:
        rows = handle.preparer.vectors.cut(rows, request.dimensions)
    usage = EmbeddingUsage(prompt_tokens=encoded.num_tokens, total_tokens=encoded.num_tokens)
    return render_embeddings(rows, request.encoding_format or "float", handle.name, usage, encoded.cut)
