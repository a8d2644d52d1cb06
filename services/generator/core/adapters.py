"""What is known about adapters outside of the ledgers: what a folder covers, and where each version is; no weights.

Made by `adapters.outline` and by `engine.adapter_lifecycle`, shown to operators; crosses to processes that have no torch.
"""

from enum import StrEnum

import msgspec


class ModuleReport(msgspec.Struct, array_like=True, frozen=True):
    """One module that the adapter changes.

    Attributes:
        module: its full name in the base model.
        scale: what B A is multiplied with, as fp32 holds it.
    """

    module: str
    rank: int
    scale: float


class SkippedTensor(msgspec.Struct, array_like=True, frozen=True):
    """A tensor of the folder that has no effect."""

    tensor: str
    reason: str


class AdapterReport(msgspec.Struct, array_like=True, frozen=True):
    """What a folder covers.

    Attributes:
        modules: what it changes, by name.
        num_bytes: of its tensors as the bank holds them, without the room that shorter ranks leave beside longer ones.
        skipped: what it holds without effect.
        warnings: what an operator may want to know.
    """

    modules: tuple[ModuleReport, ...]
    num_bytes: int
    skipped: tuple[SkippedTensor, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def max_rank(self) -> int:
        """Largest rank of any module."""
        return max(module.rank for module in self.modules)


class AdapterDescription(msgspec.Struct, array_like=True, frozen=True):
    """What is known of an adapter before its weights are read, small enough to be kept for thousands.

    Attributes:
        root: its folder.
        targets: last parts of the names of the modules that it changes.
        num_bytes: of its tensors as the bank holds them; what they take in host memory, once they have been there.
        num_skipped: tensors of the folder without effect.
    """

    name: str
    root: str
    max_rank: int
    num_modules: int
    targets: tuple[str, ...]
    num_bytes: int
    num_skipped: int = 0
    warnings: tuple[str, ...] = ()


def describe(name: str, root: str, report: AdapterReport) -> AdapterDescription:
    """The short form of `report`."""
    return AdapterDescription(
        name,
        root,
        report.max_rank,
        len(report.modules),
        tuple(sorted({module.module.rpartition(".")[2] for module in report.modules})),
        report.num_bytes,
        len(report.skipped),
        report.warnings,
    )


class AdapterTier(StrEnum):
    """The fastest place where an adapter is; what is on the device is in host memory too, and what is there is on disk."""

    DISK = "disk"
    HOST = "host"
    DEVICE = "device"


class AdapterState(msgspec.Struct, array_like=True, frozen=True):
    """One version of an adapter and what becomes of it.

    Attributes:
        version_id: no other version in this engine has it.
        digest: SHA-256 of everything that its answers depend on, in hexadecimal; None until it is read the first time.
        is_current: whether requests that name it get it; others run to their end on it.
        num_requests: requests that have not ended.
        num_leases: those of them that were admitted at some time.
        num_running: sequences in the running batch.
        num_hits: requests that were admitted with it.
        last_used_ms: unix time in milliseconds of the last of them.
    """

    version_id: int
    description: AdapterDescription
    tier: AdapterTier
    digest: str | None = None
    is_current: bool = True
    is_pinned: bool = False
    num_requests: int = 0
    num_leases: int = 0
    num_running: int = 0
    num_hits: int = 0
    last_used_ms: int | None = None

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.description.name


class RejectedFolder(msgspec.Struct, array_like=True, frozen=True):
    """A folder below a root that looks like an adapter and cannot be served."""

    root: str
    reason: str


class AdapterCounts(msgspec.Struct, array_like=True, frozen=True):
    """Of all adapters, levels now and counts since the start; `host` means in host memory, `device` in a slot.

    Attributes:
        host_load_s: reading and checking them.
        device_load_s, device_load_bytes: copying them into slots.
    """

    num_host_hits: int = 0
    num_host_misses: int = 0
    num_host_loads: int = 0
    num_host_evictions: int = 0
    host_load_s: float = 0.0
    num_in_host: int = 0
    host_bytes: int = 0
    num_device_hits: int = 0
    num_device_loads: int = 0
    num_device_evictions: int = 0
    num_in_slots: int = 0
    device_load_s: float = 0.0
    device_load_bytes: int = 0


class BankContract(msgspec.Struct, array_like=True, frozen=True):
    """What an engine takes.

    Attributes:
        max_rank: largest rank of an adapter.
        num_slots: adapters on the device at one time.
        num_places: adapters in host memory at one time.
        targets: last parts of the names of the modules that may be changed.
        bank_bytes: device memory of all slots.
        kv_tokens_per_slot: tokens whose KV would fit into the memory that a slot takes for the maximum rank.
    """

    max_rank: int
    num_slots: int
    num_places: int
    targets: tuple[str, ...]
    bank_bytes: int
    kv_tokens_per_slot: int
