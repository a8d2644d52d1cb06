"""What a client asked of the engine: immutable, made by the API process, never changed after.

Crosses the process border as it is, so these are msgspec structs of plain values. Must not import torch.
"""

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a request ended; every accepted request gets exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SamplingParams(msgspec.Struct, frozen=True):
    """How the next token is chosen, and when to stop.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        temperature: 0 takes the likeliest token; ties go to the lowest id.
        top_p: smallest set of tokens whose probabilities reach this sum; 1 keeps all.
        top_k: number of likeliest tokens kept; 0 keeps all.
        seed: the draws are a function of (seed, position) only.
        stop_token_ids: ids that end the request; the id itself is part of the output.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()


class Request(msgspec.Struct, frozen=True):
    """One sequence to generate: `request_id` is unique within its API process `frontend_id`.

    Attributes:
        cache_salt: separates the prefixes of requests with this salt from all others.
    """

    frontend_id: str
    request_id: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    cache_salt: str | None = None
