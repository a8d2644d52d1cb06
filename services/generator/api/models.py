"""`GET /v1/models` and below, `POST /tokenize` and `POST /detokenize`: what is served, and its tokenizer.

Built by `app.py`. They answer while the engine loads too, without the adapters, which it reads.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from services.generator.api.service import GeneratorService
from shared.contracts.models import ModelEntry
from shared.contracts.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from shared.http.app import json_response
from shared.http.body import body_schema
from shared.http.disconnect import until_disconnect
from shared.http.model_list import model_list_router


def models_router(service: GeneratorService) -> APIRouter:
    """The routes over `service`."""
    card = service.card

    def entries() -> list[ModelEntry]:
        adapters = sorted(service.engine.adapters.items())
        return [card.entry(), *(card.adapter_entry(state.description) for _, state in adapters)]

    router = model_list_router(entries)

    @router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
    async def tokenize(
        request: Request, body: Annotated[TokenizeRequest, Depends(service.body(TokenizeRequest))]
    ) -> Response:
        service.check_name(body.model)
        tokens = await until_disconnect(request, _tokens(service, body))
        return json_response(
            TokenizeResponse(tokens=tokens, count=len(tokens), max_model_len=service.card.max_model_len)
        )

    @router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
    async def detokenize(body: Annotated[DetokenizeRequest, Depends(service.body(DetokenizeRequest))]) -> Response:
        service.check_name(body.model)
        return json_response(DetokenizeResponse(prompt=await service.prompts.detokenize(body.tokens)))

    return router


async def _tokens(service: GeneratorService, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        with_special = bool(body.add_special_tokens)
        return await service.prompts.tokenize_chat(body.messages, body, add_special_tokens=with_special)
    with_special = True if body.add_special_tokens is None else body.add_special_tokens
    return await service.prompts.tokenize(body.prompt or "", add_special_tokens=with_special)
