"""`POST /v1/chat/completions` as OpenAI's clients send and read it; served by the generator.

Messages have text content, as a string or as text parts; other parts, and tools are refused by name.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from shared.contracts.generation import MAX_LOGPROBS, FinishReason, GenerationFields, Usage, only
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

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Any] | None, only()] = None
    tool_choice: Annotated[str | dict[str, Any] | None, only("none")] = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[str] | None, only(["text"])] = None

    def output_limit(self) -> tuple[str, int | None]:
        """`max_completion_tokens`, or the older `max_tokens` where that alone was sent."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().output_limit()

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed with logprobs: true")
        return self

    def num_logprobs(self) -> int | None:
        """As `logprobs` and `top_logprobs` say."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TopLogprob(WireModel):
    """A token and its log-probability; `bytes` are its UTF-8 bytes, which may be half a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """The chosen token, and the likeliest ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(WireModel):
    """One entry per token of the piece."""

    content: list[ChatLogprob]


class AnswerMessage(WireModel):
    """The assistant's turn."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(WireModel):
    """One whole answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
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
    logprobs: ChatLogprobs | None = None
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
