"""What `/v1/completions` and `/v1/chat/completions` have in common: sampling fields, stream options, usage.

Every field of OpenAI's schema is declared, here or in the two modules, with the list it stands in (`shared.contracts.fields`);
`docs/api-fields.md` is written from these declarations.
"""

from typing import Annotated, Literal

from pydantic import Field

from shared.contracts.fields import HARMLESS, only
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


class StreamOptions(WireModel):
    """`include_usage` adds one last chunk that carries the usage of the whole request."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, only(False)] = None


class GenerationFields(WireModel):
    """Fields of both endpoints; `null` means the default.

    Attributes:
        model: may be left out, since one model is served.
        temperature: 0 takes the likeliest token; 1 unless the model's `generation_config.json` says otherwise.
        top_p: 1 unless the model's `generation_config.json` says otherwise.
        top_k: -1 and 0 keep all; 0 unless the model's `generation_config.json` says otherwise.
        min_p: 0 unless the model's `generation_config.json` says otherwise.
        repetition_penalty: 1 unless the model's `generation_config.json` says otherwise.
        seed: choice `i` of `n` draws with seed + i; random unless given.
        stop: none of them is part of the text; one that is a special token of the model stops at that token.
        n: answers to each prompt.
        cache_salt: requests share their prefixes' KV only with requests of the same salt.
        stream_options: only with `stream`.
        logit_bias: token ids as keys, up to 1024; values from -100 to 100.
        allowed_token_ids: only these tokens are chosen.
        bad_words: these texts are never written.
        min_tokens: no stop string, stop id or end token counts before.
        stop_token_ids: these tokens end the answer too; `stop_reason` names the one that did.
        include_stop_str_in_output: whether the text ends with what stopped it.
        ignore_eos: whether the model's own end token does not end the answer.
        skip_special_tokens: true unless given.
    """

    model: ModelName | None = None
    lora: ModelName | None = None
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

    user: Annotated[str | None, HARMLESS] = None
    metadata: Annotated[dict[str, str] | None, HARMLESS] = None
    store: Annotated[bool | None, HARMLESS] = None
    service_tier: Annotated[str | None, HARMLESS] = None
    safety_identifier: Annotated[str | None, HARMLESS] = None
    prompt_cache_key: Annotated[str | None, HARMLESS] = None

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
