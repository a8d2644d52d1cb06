"""`POST /v1/chat/completions` as OpenAI's clients send and read it; served by the generator.

The conversation is in `shared.contracts.conversation`; tools are refused by name.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from shared.contracts.conversation import ChatMessage, TemplateFields
from shared.contracts.fields import HARMLESS, only
from shared.contracts.generation import MAX_LOGPROBS, FinishReason, GenerationFields, Usage
from shared.contracts.wire import WireModel


class ChatRequest(GenerationFields, TemplateFields):
    """Answer the conversation.

    Attributes:
        max_tokens: the older name of `max_completion_tokens`, which wins.
        max_completion_tokens: unless given, `max_new_tokens` of the model's `generation_config.json`, else what the context holds.
        top_logprobs: only with `logprobs`.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Any] | None, only([])] = None
    tool_choice: Annotated[str | dict[str, Any] | None, only("none")] = None
    functions: Annotated[list[Any] | None, only([])] = None
    function_call: Annotated[str | dict[str, Any] | None, only("none")] = None
    modalities: Annotated[list[str] | None, only(["text"])] = None
    audio: Annotated[dict[str, Any] | None, only()] = None
    moderation: Annotated[dict[str, Any] | None, only()] = None
    reasoning_effort: Annotated[str | None, only()] = None
    verbosity: Annotated[str | None, only("medium")] = None
    web_search_options: Annotated[dict[str, Any] | None, only()] = None

    parallel_tool_calls: Annotated[bool | None, HARMLESS] = None
    prediction: Annotated[dict[str, Any] | None, HARMLESS] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, HARMLESS] = None
    prompt_cache_retention: Annotated[str | None, HARMLESS] = None

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
