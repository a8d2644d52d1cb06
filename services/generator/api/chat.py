"""`POST /v1/chat/completions`: render the conversation, start the choices, answer them whole or as a stream.

Built by `app.py`. Shapes come from `shared.contracts.chat`; nothing is decided here.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from services.generator.api.answer import collect
from services.generator.api.logprobs import chat_logprobs
from services.generator.api.service import GeneratorService, Started, wants_usage
from services.generator.api.usage import UsageCounter
from services.generator.frontend.generation import Pieces, ScoredToken, TextPiece
from shared.contracts.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    ChatResponse,
)
from shared.contracts.generation import Usage
from shared.http.app import json_response
from shared.http.body import body_schema
from shared.http.deadline import deadline_ms, seconds_left
from shared.http.disconnect import until_disconnect
from shared.http.sse import EventStream


def chat_router(service: GeneratorService) -> APIRouter:
    """The route over `service`."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def chat(request: Request, body: Annotated[ChatRequest, Depends(service.body(ChatRequest))]) -> Response:
        (prompt,), choices, pieces = await until_disconnect(
            request,
            start_chat(service, body, deadline_ms(request.headers)),
            timeout_s=seconds_left(request.headers),
        )
        answer = _Answer(service, body, prompt, service.model_name(choices))
        headers = await service.answer_headers(request, choices)
        if body.stream:
            return EventStream(answer.chunks(pieces), choices, headers)
        async with aclosing(choices):
            return json_response(await until_disconnect(request, answer.whole(pieces)), headers=headers)

    return router


async def start_chat(service: GeneratorService, body: ChatRequest, deadline: int | None) -> Started:
    """Check everything, then start all choices."""
    service.check(body)
    prompt = await service.prompts.from_chat(body.messages, body)
    default = service.sampling.defaults.max_tokens
    choices = await service.start(body, [prompt.token_ids], default, deadline_ms=deadline, images=prompt.images)
    return Started([prompt.token_ids], choices, choices.pieces())


class _Answer:
    """The answer to one request; id, time and model are the same in all its chunks."""

    def __init__(self, service: GeneratorService, body: ChatRequest, prompt: list[int], model: str) -> None:
        self._tokenizer = service.tokenizer
        self._num_choices = body.n or 1
        self._usage = UsageCounter([prompt], self._num_choices, service.metrics)
        self._ends_with_usage = wants_usage(body)
        self._has_logprobs = bool(body.logprobs)
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self, pieces: Pieces) -> ChatResponse:
        ends = await collect(pieces, self._num_choices, self._usage)
        answers = [
            ChatChoice(
                index=index,
                message=AnswerMessage(content=end.text),
                logprobs=self._logprobs(end.tokens),
                finish_reason=end.reason,
                stop_reason=end.stop_reason,
            )
            for index, end in enumerate(ends)
        ]
        return ChatResponse(**self._head, choices=answers, usage=self._usage.total())

    async def chunks(self, pieces: Pieces) -> AsyncGenerator[bytes, None]:
        for index in range(self._num_choices):
            delta = ChatDelta(role="assistant", content="")
            yield self._encode([ChatChunkChoice(index=index, delta=delta, finish_reason=None)])
        async with aclosing(pieces):
            async for index, piece in pieces:
                self._usage.add(index, piece)
                yield self._encode([self._choice(index, piece)])
        if self._ends_with_usage:
            yield self._encode([], self._usage.total())

    def _choice(self, index: int, piece: TextPiece) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=index,
            delta=ChatDelta(content=piece.text) if piece.text else ChatDelta(),
            logprobs=self._logprobs(piece.tokens),
            finish_reason=piece.public_reason,
            stop_reason=piece.stop_reason,
        )

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, tokens) if self._has_logprobs and tokens else None

    def _encode(self, choices: list[ChatChunkChoice], used: Usage | None = None) -> bytes:
        chunk = ChatChunk(**self._head, choices=choices, usage=used)
        # A delta names only what it adds: clients take a present null for a change.
        return chunk.model_dump_json(exclude={"choices": {"__all__": {"delta": _absent(choices)}}}).encode()


def _absent(choices: list[ChatChunkChoice]) -> set[str]:
    return {name for choice in choices for name, value in choice.delta if value is None}
