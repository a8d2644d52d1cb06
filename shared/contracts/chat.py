"""`POST /v1/chat/completions` as OpenAI's clients send and read it; served by the generator.

Messages have text content, as a string or as text parts; other parts, tools and structured output are refused by name.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from shared.contracts.generation import FinishReason, GenerationFields, Usage, only
from shared.contracts.wire import WireModel


class TextPart(WireModel):
    """A piece of a message; the only part type so far."""

    type: Literal["text"]
    text: str


class ChatMessage(WireModel):
    """One turn; a `developer` message is a system message to the template."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None


class ChatRequest(GenerationFields):
    """Answer the conversation; without a limit the answer may fill the context."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None

    logprobs: Annotated[bool | None, only(False)] = None
    top_logprobs: Annotated[int | None, only(0)] = None
    response_format: Annotated[dict[str, Any] | None, only({"type": "text"})] = None
    tools: Annotated[list[Any] | None, only()] = None
    tool_choice: Annotated[str | dict[str, Any] | None, only("none")] = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[str] | None, only(["text"])] = None

    def output_limit(self) -> tuple[str, int | None]:
        """`max_completion_tokens`, or the older `max_tokens` where that alone was sent."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().output_limit()


class AnswerMessage(WireModel):
    """The assistant's turn."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(WireModel):
    """One whole answer."""

    index: int
    message: AnswerMessage
    logprobs: None = None
    finish_reason: FinishReason
    stop_reason: str | int | None = None


class ChatResponse(WireModel):
    """The answer; `created` in unix seconds."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(WireModel):
    """What a chunk adds; the first one of a choice names the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(WireModel):
    """The next piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class ChatChunk(WireModel):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
