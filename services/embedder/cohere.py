"""Cohere's embedding routes: their request becomes the work that every embedding request is, their answer is put together here.

Included by `app` beside `api`. Must not import torch.
"""

import uuid
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic_core import to_json

from services.embedder.prepare import check_count
from services.embedder.render import vector_list
from shared.batching.model_thread import Rows
from shared.contracts.cohere_embed import CohereEmbedMeta, CohereEmbedRequest, CohereInputType
from shared.contracts.embeddings import EncodingFormat
from shared.contracts.rerank import ApiVersion
from shared.contracts.wire import TruncateSide
from shared.http.body import body_schema, json_body
from shared.http.deadline import seconds_left
from shared.http.disconnect import until_disconnect
from shared.http.encoder_handle import Encoded, EncoderHandle
from shared.text.preparer import Prepared, TextPreparer
from shared.text.prompts import InputKind

Version = Literal["1", "2"]

_KINDS: Mapping[CohereInputType | None, InputKind] = {
    None: "text",
    "search_query": "query",
    "search_document": "document",
    "classification": "text",
    "clustering": "text",
}
_SIDES: Mapping[str | None, TruncateSide] = {None: "end", "NONE": "none", "START": "start", "END": "end"}


def cohere_router(handle: EncoderHandle[TextPreparer]) -> APIRouter:
    """`POST /v1/embed` and `POST /v2/embed`."""
    router = APIRouter()

    async def answer(http: Request, request: CohereEmbedRequest, version: Version) -> Response:
        handle.check_model(request.model)
        body = await until_disconnect(http, _embed(handle, request, version), timeout_s=seconds_left(http.headers))
        return Response(body, media_type="application/json")

    @router.post("/v1/embed", openapi_extra=body_schema(CohereEmbedRequest))
    async def embed_v1(
        http: Request, request: Annotated[CohereEmbedRequest, Depends(json_body(CohereEmbedRequest))]
    ) -> Response:
        return await answer(http, request, "1")

    @router.post("/v2/embed", openapi_extra=body_schema(CohereEmbedRequest))
    async def embed_v2(
        http: Request, request: Annotated[CohereEmbedRequest, Depends(json_body(CohereEmbedRequest))]
    ) -> Response:
        return await answer(http, request, "2")

    return router


async def _embed(handle: EncoderHandle[TextPreparer], request: CohereEmbedRequest, version: Version) -> bytes:
    encoded = await handle.encode(lambda preparer: _prepare(request, preparer))
    return await handle.off_loop(lambda: _render(handle, request, encoded, version))


def _prepare(request: CohereEmbedRequest, preparer: TextPreparer) -> Prepared[list[int]]:
    check_count(len(request.texts), param="texts")
    if request.output_dimension is not None:
        preparer.vectors.check(request.output_dimension, param="output_dimension")
    prompt = preparer.prompts.of_kind(_KINDS[request.input_type])
    return preparer.from_texts(request.texts, prompt=prompt, param="texts", truncate=_SIDES[request.truncate])


def _render(
    handle: EncoderHandle[TextPreparer], request: CohereEmbedRequest, encoded: Encoded, version: Version
) -> bytes:
    rows = encoded.rows
    if request.output_dimension is not None:
        rows = handle.preparer.vectors.cut(rows, request.output_dimension)
    meta = CohereEmbedMeta(
        api_version=ApiVersion(version=version),
        billed_units={"input_tokens": encoded.num_tokens},
        warnings=[f"texts.{index} was too long and was cut" for index in encoded.cut] or None,
    )
    is_plain = version == "1" and request.embedding_types is None
    kind = "embeddings_floats" if is_plain else "embeddings_by_type"
    vectors = vector_list(rows, "float") if is_plain else _by_type(request, rows)
    texts, rest = to_json(request.texts), meta.model_dump_json(exclude_none=True).encode()
    head = b'{"id":%s,"response_type":%s' % (to_json(f"embed-{uuid.uuid4().hex}"), to_json(kind))
    return head + b',"embeddings":' + vectors + b',"texts":' + texts + b',"meta":' + rest + b"}"


def _by_type(request: CohereEmbedRequest, rows: Rows) -> bytes:
    default: list[EncodingFormat] = ["float"]
    kinds = dict.fromkeys(request.embedding_types or default)
    return b"{" + b",".join(b"%s:%s" % (to_json(kind), vector_list(rows, kind)) for kind in kinds) + b"}"
