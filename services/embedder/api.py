"""The embedder's own path: it parses, asks the handle and renders.

Included by `app`. Must not import torch; errors are turned into answers by `shared.http`.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from services.embedder.prepare import prepare_inputs
from services.embedder.render import render_embeddings
from shared.contracts.embeddings import EmbeddingRequest, EmbeddingUsage
from shared.http.body import body_schema, json_body
from shared.http.disconnect import until_disconnect
from shared.http.encoder_handle import EncoderHandle


def embeddings_router(handle: EncoderHandle) -> APIRouter:
    """`POST /v1/embeddings`."""
    router = APIRouter()

    @router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingRequest))
    async def create_embeddings(
        http: Request, request: Annotated[EmbeddingRequest, Depends(json_body(EmbeddingRequest))]
    ) -> Response:
        handle.check_model(request.model)
        body = await until_disconnect(http, _embed(handle, request))
        return Response(body, media_type="application/json")

    return router


async def _embed(handle: EncoderHandle, request: EmbeddingRequest) -> bytes:
    rows, num_tokens = await handle.encode(lambda preparer: prepare_inputs(request, preparer))
    usage = EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    return await handle.off_loop(
        lambda: render_embeddings(rows, request.encoding_format or "float", handle.name, usage)
    )
