"""`POST /v1/chat/completions`: render the conversation, start the choices, answer them whole or as a stream.

Built by `app.py`. Shapes come from `shared.contracts.chat`; nothing is decided here.
"""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from services.generator.api.answer import collect
from services.generator.api.service import GeneratorService, wants_usage
from services.generator.api.usage import UsageCounter
from services.generator.frontend.choices import Choices
from services.generator.frontend.generation import TextPiece
from shared.contracts.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatRequest,
    ChatResponse,
)
from shared.contracts.generation import Usage
from shared.http.app import json_response
from shared.http.body import body_schema, json_body
from shared.http.disconnect import until_disconnect
from shared.http.sse import EventStream


def chat_router(service: GeneratorService) -> APIRouter:
    """The route over `service`."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def chat(request: Request, body: Annotated[ChatRequest, Depends(json_body(ChatRequest))]) -> Response:
        service.card.check_name(body.model)
        prompt = await service.prompts.from_chat(body.messages)
        choices = await service.start(body, [prompt], None)
        answer = _Answer(service, UsageCounter([prompt], body.n or 1))
        if body.stream:
            return EventStream(answer.chunks(choices, with_usage=wants_usage(body)))
        return json_response(await until_disconnect(request, answer.whole(choices)))

    return router


class _Answer:
    """The answer to one request; id, time and model are the same in all its chunks."""

    def __init__(self, service: GeneratorService, usage: UsageCounter) -> None:
        self._service = service
        self._usage = usage
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": service.card.name,
        }

    async def whole(self, choices: Choices) -> ChatResponse:
        ends = await collect(choices, self._service.metrics, self._usage)
        answers = [
            ChatChoice(
                index=index,
                message=AnswerMessage(content=end.text),
                finish_reason=end.finish_reason,
                stop_reason=end.stop_reason,
            )
            for index, end in enumerate(ends)
        ]
        return ChatResponse(**self._head, choices=answers, usage=self._usage.total())

    async def chunks(self, choices: Choices, *, with_usage: bool) -> AsyncGenerator[bytes, None]:
        try:
            for index in range(choices.num_choices):
                delta = ChatDelta(role="assistant", content="")
                yield self._encode([ChatChunkChoice(index=index, delta=delta, finish_reason=None)])
            async with aclosing(choices.pieces()) as pieces:
                async for index, piece in pieces:
                    self._usage.add(index, piece)
                    self._service.metrics.record(piece.num_tokens, piece.public_reason)
                    yield self._encode([_choice(index, piece)])
            if with_usage:
                yield self._encode([], self._usage.total())
        finally:
            await choices.aclose()

    def _encode(self, choices: list[ChatChunkChoice], used: Usage | None = None) -> bytes:
        chunk = ChatChunk(**self._head, choices=choices, usage=used)
        # A delta names only what it adds: clients take a present null for a change.
        return chunk.model_dump_json(exclude={"choices": {"__all__": {"delta": _absent(choices)}}}).encode()


def _choice(index: int, piece: TextPiece) -> ChatChunkChoice:
    return ChatChunkChoice(
        index=index,
        delta=ChatDelta(content=piece.text) if piece.text else ChatDelta(),
        finish_reason=piece.public_reason,
        stop_reason=piece.stop_reason,
    )


def _absent(choices: list[ChatChunkChoice]) -> set[str]:
    return {name for choice in choices for name, value in choice.delta if value is None}
