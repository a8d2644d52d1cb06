"""Everything that crosses between an API process and the engine: commands in, events out, all plain values.

Encoded as msgpack by the transport. One message of events per step and API process; nothing here knows sockets.
"""

import msgspec

from services.generator.core.request import FinishReason, Request

PROTOCOL_VERSION = 2


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of an API process; the engine answers `EngineReady`, or `Refused` for another version."""

    protocol_version: int = PROTOCOL_VERSION


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Start a request."""

    request: Request


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End a request early: its client left, or a stop string was found in its text."""

    request_id: int


class ResetPrefixCache(msgspec.Struct, tag=True, frozen=True):
    """Forget the content of all KV blocks."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Leave the loop after the step in flight."""


Command = Hello | Submit | Abort | ResetPrefixCache | Shutdown


class AdapterInfo(msgspec.Struct, array_like=True, frozen=True):
    """An adapter that requests can name.

    Attributes:
        root: where it was read from.
        digest: SHA-256 of its content, in hexadecimal.
        max_rank: largest rank of any of its modules.
        num_modules: modules that it changes.
        num_bytes: of its tensors in host memory.
    """

    name: str
    root: str
    digest: str
    max_rank: int
    num_modules: int
    num_bytes: int


class EngineReady(msgspec.Struct, tag=True, frozen=True):
    """The model is loaded; limits that the engine measured."""

    max_model_len: int
    num_blocks: int
    block_size: int
    adapters: list[AdapterInfo] = []


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The API process cannot talk to this engine."""

    reason: str


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True):
    """Log-probability of a token, and the likeliest tokens in its place as (id, log-probability), likeliest first."""

    logprob: float
    top: list[tuple[int, float]]


class TokenEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """New tokens of one request, and its end if this was it.

    Attributes:
        num_cached_tokens: with the first tokens: prompt tokens whose KV was in the prefix cache.
        logprobs: one for each of `token_ids`, where asked for.
        prompt_logprobs: for the next prompt tokens from the second on, where asked for; comes before the first token.
    """

    request_id: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None


class EngineStats(msgspec.Struct, array_like=True, frozen=True):
    """Levels after a step and counts since the start, for the metrics of the API process."""

    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    num_preemptions: int = 0
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0


class StepEvents(msgspec.Struct, tag=True, frozen=True):
    """What one step means for one API process."""

    tokens: list[TokenEvent]
    stats: EngineStats


Event = EngineReady | Refused | StepEvents
