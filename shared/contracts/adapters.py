"""The life of a generator's adapters over HTTP: `GET /v1/adapters`, and the calls that load, unload and pin them."""

from typing import Annotated, Literal

from pydantic import Field

from shared.contracts.wire import WireModel

AdapterName = Annotated[str, Field(min_length=1, max_length=128)]


class LoadAdapterRequest(WireModel):
    """`POST /v1/load_lora_adapter`.

    Attributes:
        lora_path: a PEFT folder, absolute or relative to a `--lora-root`, below which it must lie.
        dry_run: check and report only.
        load_inplace: false refuses a name that is in use for other content; otherwise that becomes a new version, and requests
            that were accepted before finish on the old one.
    """

    lora_name: AdapterName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    dry_run: bool | None = None
    load_inplace: bool | None = None


class UnloadAdapterRequest(WireModel):
    """`POST /v1/unload_lora_adapter`.

    Attributes:
        drain: unload after the requests that use it, instead of a 409 while there are some.
    """

    lora_name: AdapterName
    drain: bool | None = None


class PinAdapterRequest(WireModel):
    """`POST /v1/pin_lora_adapter`.

    Attributes:
        pinned: false lets it go again.
    """

    lora_name: AdapterName
    pinned: bool | None = None


class AdapterModule(WireModel):
    """A module that an adapter changes; `scale` is what B A is multiplied with."""

    module: str
    rank: int
    scale: float


class SkippedAdapterTensor(WireModel):
    """A tensor of the folder without effect."""

    tensor: str
    reason: str


class LoadAdapterResponse(WireModel):
    """What was read, and whether it is served now.

    Attributes:
        status: `unchanged` where the name had this content before; `checked` after a dry run.
        root: its folder.
        digest: SHA-256 of its content, in hexadecimal; equal weights have equal digests whatever they are called.
        num_bytes: of its tensors as the bank holds them.
    """

    lora_name: str
    status: Literal["loaded", "unchanged", "checked"]
    root: str
    digest: str
    max_rank: int
    num_bytes: int
    modules: list[AdapterModule]
    skipped: list[SkippedAdapterTensor]
    warnings: list[str]


class AdapterStatus(WireModel):
    """What an unload or a pin came to."""

    lora_name: str
    status: Literal["unloaded", "draining", "pinned", "unpinned"]


class AdapterEntry(WireModel):
    """One version of an adapter.

    Attributes:
        root: its folder.
        digest: SHA-256 of its content, in hexadecimal; none before it is read the first time.
        status: `draining` runs the requests that it has to their end, and takes no more.
        tier: the fastest place where it is.
        max_rank: largest rank of any of its modules.
        num_modules: modules of the base model that it changes.
        targets: last parts of their names.
        num_skipped: tensors of the folder without effect.
        num_bytes: of its tensors as the bank holds them.
        leases: requests that were admitted with it and have not ended.
        waiting: requests that were accepted and not yet admitted.
        running: sequences in the running batch.
        hits: requests that were admitted with it since the start.
        last_used: unix time in seconds of the last of them.
    """

    name: str
    root: str
    digest: str | None
    status: Literal["serving", "draining"]
    tier: Literal["disk", "host", "device"]
    pinned: bool
    max_rank: int
    num_modules: int
    targets: list[str]
    num_skipped: int
    warnings: list[str]
    num_bytes: int
    leases: int
    waiting: int
    running: int
    hits: int
    last_used: float | None


class RejectedAdapter(WireModel):
    """A folder below a root that cannot be served."""

    root: str
    reason: str


class AdapterBank(WireModel):
    """What the engine takes.

    Attributes:
        max_rank: largest rank of an adapter, for which every slot has room.
        num_slots: adapters on the device at one time.
        num_host_places: adapters in host memory at one time.
        num_in_slots, num_in_host, host_bytes: what is taken of that.
        targets: last parts of the names of the modules that may be changed.
        bank_bytes: device memory of all slots.
        kv_tokens_per_slot: tokens whose KV would fit into what one slot takes.
    """

    max_rank: int
    num_slots: int
    num_host_places: int
    num_in_slots: int
    num_in_host: int
    host_bytes: int
    targets: list[str]
    bank_bytes: int
    kv_tokens_per_slot: int


class AdapterList(WireModel):
    """All adapters that requests can name, and older versions that requests still run on."""

    object: Literal["list"] = "list"
    data: list[AdapterEntry]
    rejected: list[RejectedAdapter]
    bank: AdapterBank | None
