"""`POST /v1/completions`: parse, start the choices, answer them whole or as a stream.

Built by `app.py`. Shapes come from `shared.contracts.completions`; nothing is decided here.
"""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from services.generator.api.answer import collect
from services.generator.api.service import GeneratorService, wants_usage
from services.generator.api.usage import UsageCounter
from services.generator.frontend.choices import Choices
from services.generator.frontend.generation import TextPiece
from shared.contracts.completions import CompletionChoice, CompletionRequest, CompletionResponse
from shared.contracts.generation import Usage
from shared.http.app import json_response
from shared.http.body import body_schema, json_body
from shared.http.disconnect import until_disconnect
from shared.http.sse import EventStream

DEFAULT_MAX_TOKENS = 16


def completions_router(service: GeneratorService) -> APIRouter:
    """The route over `service`."""
    router = APIRouter()

    @router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
    async def complete(
        request: Request, body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))]
    ) -> Response:
        service.card.check_name(body.model)
        prompts = await service.prompts.from_completion(body.prompt)
        choices = await service.start(body, prompts, DEFAULT_MAX_TOKENS)
        answer = _Answer(service, UsageCounter(prompts, body.n or 1))
        if body.stream:
            return EventStream(answer.chunks(choices, with_usage=wants_usage(body)))
        return json_response(await until_disconnect(request, answer.whole(choices)))

    return router


class _Answer:
    """The answer to one request; id, time and model are the same in all its chunks."""

    def __init__(self, service: GeneratorService, usage: UsageCounter) -> None:
        self._service = service
        self._usage = usage
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    async def whole(self, choices: Choices) -> CompletionResponse:
        ends = await collect(choices, self._service.metrics, self._usage)
        answers = [
            CompletionChoice(index=index, text=end.text, finish_reason=end.finish_reason, stop_reason=end.stop_reason)
            for index, end in enumerate(ends)
        ]
        return self._response(answers, self._usage.total())

    async def chunks(self, choices: Choices, *, with_usage: bool) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(choices.pieces()) as pieces:
                async for index, piece in pieces:
                    self._usage.add(index, piece)
                    self._service.metrics.record(piece.num_tokens, piece.public_reason)
                    yield self._encode([_choice(index, piece)])
            if with_usage:
                yield self._encode([], self._usage.total())
        finally:
            await choices.aclose()

    def _encode(self, choices: list[CompletionChoice], used: Usage | None = None) -> bytes:
        return self._response(choices, used).model_dump_json().encode()

    def _response(self, choices: list[CompletionChoice], used: Usage | None) -> CompletionResponse:
        return CompletionResponse(
            id=self._id, created=self._created, model=self._service.card.name, choices=choices, usage=used
        )


def _choice(index: int, piece: TextPiece) -> CompletionChoice:
    return CompletionChoice(
        index=index, text=piece.text, finish_reason=piece.public_reason, stop_reason=piece.stop_reason
    )
