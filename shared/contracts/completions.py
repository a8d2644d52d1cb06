"""`POST /v1/completions` as OpenAI's clients send and read it; served by the generator.

A prompt is a text, token ids, or a list of either; choice `n * i + j` is the j-th answer to the i-th prompt.
"""

from typing import Annotated, Literal

from shared.contracts.generation import FinishReason, GenerationFields, Usage, only
from shared.contracts.wire import TokenId, WireModel

Prompt = str | list[str] | list[TokenId] | list[list[TokenId]]


class CompletionRequest(GenerationFields):
    """Continue each prompt; `max_tokens` is 16 by default."""

    prompt: Prompt
    best_of: Annotated[int | None, only(1)] = None
    echo: Annotated[bool | None, only(False)] = None
    logprobs: Annotated[int | None, only()] = None
    suffix: Annotated[str | None, only("")] = None


class CompletionChoice(WireModel):
    """One continuation, or in a stream the next piece of one."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class CompletionResponse(WireModel):
    """The answer, or one chunk of its stream; `created` in unix seconds."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
