"""What `/v1/completions` and `/v1/chat/completions` have in common: sampling fields, stream options, usage.

Every field of OpenAI's schema is in one of three lists. Supported: those declared here and in the two modules. Without
effect: `user`, `metadata`, `parallel_tool_calls`, `store`, `service_tier`, `safety_identifier`, `prompt_cache_key`.
Everything else is refused by name, also a field that is known but whose value would change the answer (`best_of: 2`, say).
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from shared.contracts.structured import ResponseFormat, StructuredOutputs
from shared.contracts.wire import ModelName, Seed, TokenId, WireModel

FinishReason = Literal["stop", "length"]
StopString = Annotated[str, Field(min_length=1)]
BadWord = Annotated[str, Field(min_length=1, max_length=64)]
Stop = StopString | Annotated[list[StopString], Field(max_length=16)]


IdKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
"""A token id as a key of a JSON object."""

MAX_LOGPROBS = 20
"""Most likeliest tokens that can be asked for with each token."""


def only(*neutral: Any) -> AfterValidator:
    """Accept a field that is not supported yet only at values that change nothing."""

    def check(value: Any) -> Any:
        if value is not None and value not in neutral:
            allowed = "".join(f" or send {item!r}" for item in neutral)
            raise ValueError(f"is not supported; leave it out{allowed}")
        return value

    return AfterValidator(check)


class StreamOptions(WireModel):
    """`include_usage` adds one last chunk that carries the usage of the whole request."""

    include_usage: bool | None = None


class GenerationFields(WireModel):
    """Fields of both endpoints; `null` means the default."""

    model: ModelName | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[IdKey, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=32)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=48)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def output_limit(self) -> tuple[str, int | None]:
        """The field that limits the output, and its value where one was sent."""
        return "max_tokens", self.max_tokens

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are wanted with each token; None for no log-probabilities."""
        return None


class PromptTokensDetails(WireModel):
    """`cached_tokens`: prompt tokens that were not computed, since their KV was in the prefix cache."""

    cached_tokens: int


class Usage(WireModel):
    """Tokens of a request: the prompt counted once, the output of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
