"""Everything that crosses between an API process and the engine: commands in, events out, all plain values.

Encoded as msgpack by the transport. One message of events per step and API process; nothing here knows sockets.
"""

from enum import StrEnum

import msgspec

from services.generator.core.adapters import AdapterCounts, AdapterReport, AdapterState, BankContract, RejectedFolder
from services.generator.core.launch import Launch
from services.generator.core.request import FinishReason, Request

PROTOCOL_VERSION = 5


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of an API process; the engine answers `EngineReady`, or `Refused` for another version."""

    protocol_version: int = PROTOCOL_VERSION


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Start the choices of one API request together, so that nothing changes between them: all get the same adapter version."""

    requests: list[Request]


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End a request early: its client left, or a stop string was found in its text."""

    request_id: int


class ResetPrefixCache(msgspec.Struct, tag=True, frozen=True):
    """Forget the content of all KV blocks."""


class LoadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Read the adapter in a folder below a root and serve it; answered by `AdapterAnswer`.

    Attributes:
        path: absolute, or relative to a root.
        is_dry_run: check and report only.
        may_replace: whether the name may be in use for other content, which is then a new version.
    """

    call_id: int
    name: str
    path: str
    is_dry_run: bool = False
    may_replace: bool = True


class UnloadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Take an adapter out of memory; with `drains` after the requests that use it. Answered by `AdapterAnswer`."""

    call_id: int
    name: str
    drains: bool = False


class PinAdapter(msgspec.Struct, tag=True, frozen=True):
    """Keep an adapter in memory, or let it go again; answered by `AdapterAnswer`."""

    call_id: int
    name: str
    is_pinned: bool


AdapterCommand = LoadAdapter | UnloadAdapter | PinAdapter


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Leave the loop after the step in flight."""


Command = Hello | Submit | Abort | ResetPrefixCache | Shutdown | AdapterCommand


class EngineReady(msgspec.Struct, tag=True, frozen=True):
    """The model is loaded; limits that the engine measured. `AdapterChanges` with all adapters comes first, if there is a bank.

    Attributes:
        max_image_rows: rows that the images of one request may have together; 0 where the model takes no images.
        num_graphs: CUDA graphs that were captured for steps.
    """

    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    bank: BankContract | None = None
    max_image_rows: int = 0
    num_graphs: int = 0


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
        adapter_digest: once, as soon as it is certain: of the version of its adapter that answers, in hexadecimal.
        problem: what is wrong with the adapter, where that is why it ended.
    """

    request_id: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    adapter_digest: str | None = None
    problem: str | None = None


class EngineStats(msgspec.Struct, array_like=True, frozen=True):
    """Levels after a step and counts since the start, for the metrics of the API process.

    Attributes:
        num_steps: by how they were launched, without those of which there was none.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    num_preemptions: int = 0
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_encoded_images: int = 0
    num_encoded_rows: int = 0
    num_image_hits: int = 0
    num_image_rows: int = 0
    num_steps: dict[Launch, int] = {}


class StepEvents(msgspec.Struct, tag=True, frozen=True):
    """What one step means for one API process."""

    tokens: list[TokenEvent]
    stats: EngineStats


class AdapterChanges(msgspec.Struct, tag=True, frozen=True):
    """What is not as it was, for every API process; the first one has everything.

    Attributes:
        gone: version ids.
        rejects: all there are, where something about them changed.
    """

    changed: list[AdapterState]
    gone: list[int]
    counts: AdapterCounts
    rejects: list[RejectedFolder] | None = None


class AdapterOutcome(StrEnum):
    """What an adapter command came to."""

    LOADED = "loaded"
    UNCHANGED = "unchanged"
    CHECKED = "checked"
    UNLOADED = "unloaded"
    DRAINING = "draining"
    PINNED = "pinned"
    UNPINNED = "unpinned"


class AdapterAnswer(msgspec.Struct, tag=True, frozen=True):
    """The end of an adapter command.

    Attributes:
        outcome: None where it was refused, for which `error` and `problem` say why and `param` where.
        digest: of the content that is served under the name now, in hexadecimal.
        report: of what was read.
    """

    call_id: int
    outcome: AdapterOutcome | None = None
    digest: str | None = None
    root: str | None = None
    report: AdapterReport | None = None
    error: str | None = None
    problem: str = ""
    param: str | None = None


Event = EngineReady | Refused | StepEvents | AdapterChanges | AdapterAnswer
