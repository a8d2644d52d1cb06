"""`POST /v1/completions`: parse, start the choices, answer them whole or as a stream.

Built by `app.py`. Shapes come from `shared.contracts.completions`; nothing is decided here.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from services.generator.api.answer import collect
from services.generator.api.logprobs import completion_logprobs
from services.generator.api.service import GeneratorService, Started, wants_usage
from services.generator.api.usage import UsageCounter
from services.generator.frontend.echo import Echo
from services.generator.frontend.generation import Pieces, ScoredToken, TextPiece
from shared.contracts.completions import CompletionChoice, CompletionLogprobs, CompletionRequest, CompletionResponse
from shared.contracts.generation import Usage
from shared.http.app import json_response
from shared.http.body import body_schema
from shared.http.deadline import deadline_ms, seconds_left
from shared.http.disconnect import until_disconnect
from shared.http.sse import EventStream

DEFAULT_MAX_TOKENS = 16


def completions_router(service: GeneratorService) -> APIRouter:
    """The route over `service`."""
    router = APIRouter()

    @router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
    async def complete(
        request: Request, body: Annotated[CompletionRequest, Depends(service.body(CompletionRequest))]
    ) -> Response:
        prompts, choices, pieces = await until_disconnect(
            request,
            start_completion(service, body, deadline_ms(request.headers)),
            timeout_s=seconds_left(request.headers),
        )
        answer = _Answer(service, body, prompts, service.model_name(choices))
        headers = await service.answer_headers(request, choices)
        if body.stream:
            return EventStream(answer.chunks(pieces), choices, headers)
        async with aclosing(choices):
            whole = await until_disconnect(request, answer.whole(pieces, choices.num_choices))
            return json_response(whole, headers=headers)

    return router


async def start_completion(service: GeneratorService, body: CompletionRequest, deadline: int | None) -> Started:
    """Check everything, then start all choices."""
    service.check(body)
    prompts = await service.prompts.from_completion(body.prompt)
    scores_prompt = bool(body.echo) and body.logprobs is not None
    choices = await service.start(body, prompts, DEFAULT_MAX_TOKENS, deadline_ms=deadline, scores_prompt=scores_prompt)
    pieces = _echo(service, body, prompts).over(choices.pieces()) if body.echo else choices.pieces()
    return Started(prompts, choices, pieces)


def _echo(service: GeneratorService, body: CompletionRequest, prompts: Sequence[list[int]]) -> Echo:
    is_scored = body.logprobs is not None
    return Echo(service.tokenizer, prompts, body.n or 1, is_alone=body.max_tokens == 0, is_scored=is_scored)


class _Answer:
    """The answer to one request; id, time and model are the same in all its chunks."""

    def __init__(
        self, service: GeneratorService, body: CompletionRequest, prompts: Sequence[list[int]], model: str
    ) -> None:
        self._service = service
        self._usage = UsageCounter(prompts, body.n or 1, service.metrics)
        self._ends_with_usage = wants_usage(body)
        self._has_logprobs = body.logprobs is not None
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model

    async def whole(self, pieces: Pieces, num_choices: int) -> CompletionResponse:
        ends = await collect(pieces, num_choices, self._usage)
        answers = [
            CompletionChoice(
                index=index,
                text=end.text,
                logprobs=self._logprobs(end.tokens),
                finish_reason=end.reason,
                stop_reason=end.stop_reason,
            )
            for index, end in enumerate(ends)
        ]
        return self._response(answers, self._usage.total())

    async def chunks(self, pieces: Pieces) -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            async for index, piece in pieces:
                self._usage.add(index, piece)
                yield self._encode([self._choice(index, piece)])
        if self._ends_with_usage:
            yield self._encode([], self._usage.total())

    def _choice(self, index: int, piece: TextPiece) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=piece.text,
            logprobs=self._logprobs(piece.tokens),
            finish_reason=piece.public_reason,
            stop_reason=piece.stop_reason,
        )

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> CompletionLogprobs | None:
        return completion_logprobs(self._service.tokenizer, tokens) if self._has_logprobs else None

    def _encode(self, choices: list[CompletionChoice], used: Usage | None = None) -> bytes:
        return self._response(choices, used).model_dump_json().encode()

    def _response(self, choices: list[CompletionChoice], used: Usage | None) -> CompletionResponse:
        return CompletionResponse(id=self._id, created=self._created, model=self._model, choices=choices, usage=used)
