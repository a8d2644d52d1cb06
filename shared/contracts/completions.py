"""`POST /v1/completions` as OpenAI's clients send and read it; served by the generator.

A prompt is a text, token ids, or a list of either; choice `n * i + j` is the j-th answer to the i-th prompt.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shared.contracts.fields import only
from shared.contracts.generation import MAX_LOGPROBS, FinishReason, GenerationFields, Usage
from shared.contracts.wire import TextsOrIds, WireModel


class CompletionRequest(GenerationFields):
    """Continue each prompt.

    Attributes:
        prompt: up to 256 prompts.
        max_tokens: 16 unless given; 0 only with `echo`.
        echo: whether the prompt stands before the answer, with its log-probabilities where they are asked for.
        logprobs: how many of the likeliest tokens are named with each token, besides the chosen one.
    """

    prompt: TextsOrIds
    best_of: Annotated[int | None, only(1)] = None
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    suffix: Annotated[str | None, only("")] = None

    @model_validator(mode="after")
    def _check_nothing_to_generate(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 is only allowed with echo: true")
        return self

    def num_logprobs(self) -> int | None:
        """As `logprobs` says."""
        return self.logprobs


class CompletionLogprobs(WireModel):
    """Four lists with an entry per token; the first prompt token has null where it has no log-probability.

    `text_offset` counts the characters of the answer's text before the token.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(WireModel):
    """One continuation, or in a stream the next piece of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
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
