"""What a client asked of the engine: immutable, made by the API process, never changed after.

Crosses the process border as it is, so these are msgspec structs of plain values. Must not import torch.
"""

from enum import StrEnum

import msgspec

from services.generator.core.images import PromptImage


class FinishReason(StrEnum):
    """Why a request ended; every accepted request gets exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = "deadline"
    FAILED = "failed"
    NO_ADAPTER = "no_adapter"
    BAD_ADAPTER = "bad_adapter"


MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_BAD_WORDS = 64
MAX_BAD_WORD_TOKENS = 9
"""Widths of the runner's tables; the front end refuses what exceeds them."""


class SamplingParams(msgspec.Struct, frozen=True):
    """How the next token is chosen, and when to stop.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        temperature: 0 takes the likeliest token; ties go to the lowest id.
        top_p: smallest set of tokens whose probabilities reach this sum; 1 keeps all.
        top_k: number of likeliest tokens kept; 0 keeps all.
        min_p: tokens below this share of the likeliest one's probability are dropped.
        seed: the draws are a function of (seed, position) only.
        repetition_penalty: divides (or multiplies, where negative) the logits of tokens in prompt or output; 1 does nothing.
        presence_penalty: subtracted from the logits of tokens in the output.
        frequency_penalty: the same, times how often the token is there.
        logit_bias: added to the logits of these ids.
        allowed_token_ids: only these can be chosen.
        bad_words: sequences of ids of which the last is never chosen after the others.
        stop_token_ids: ids that end the request; the id itself is part of the output.
        min_tokens: stop ids cannot be chosen before this many tokens.
        logprobs: how many of the likeliest tokens to report with each token; 0 for the chosen one alone, None for nothing.
        prompt_logprobs: the same for each prompt token but the first.
        grammar: what the output must match, as llguidance writes it; see `core.grammar`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: list[int] | None = None
    bad_words: list[list[int]] = []
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on which tokens came before, beyond the model itself."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def has_filters(self) -> bool:
        """Whether the least likely tokens are left out of a draw."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


Choice = tuple[list[int], SamplingParams]
"""Prompt and parameters of one of the sequences that an API request asks for."""


class RequestOptions(msgspec.Struct, frozen=True):
    """What all choices of one API request share besides prompt and sampling; see `Request`.

    Attributes:
        is_read_whole: whether nobody reads an answer before its end, so that its tokens may come some at a time.
    """

    cache_salt: str | None = None
    deadline_ms: int | None = None
    adapter: str | None = None
    images: tuple[PromptImage, ...] = ()
    is_read_whole: bool = False


class Request(msgspec.Struct, frozen=True):
    """One sequence to generate: `request_id` is unique within its API process `frontend_id`.

    Attributes:
        cache_salt: separates the prefixes of requests with this salt from all others.
        adapter: name of the adapter that answers; None for the base model.
        deadline_ms: unix time in milliseconds from which on it is not started any more.
        images: of the prompt, in order of position; their placeholders are part of `prompt_token_ids`.
    """

    frontend_id: str
    request_id: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    cache_salt: str | None = None
    deadline_ms: int | None = None
    adapter: str | None = None
    images: tuple[PromptImage, ...] = ()
