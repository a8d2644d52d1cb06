"""What API processes are told of adapters: everything when they come, then what changed, a few times a second at most.

Owned by `engine.adapter_lifecycle`. Reads the ledgers and takes their list of what changed; changes no version. Also logs
what goes into slots.
"""

from dataclasses import dataclass, field
from typing import Protocol

from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.adapters import (
    AdapterCounts,
    AdapterDescription,
    AdapterState,
    AdapterTier,
    BankContract,
    RejectedFolder,
)
from services.generator.core.messages import AdapterChanges
from services.generator.core.plan import AdapterCopy
from services.generator.scheduler.adapter_registry import AdapterRegistry
from shared.observability.logging import get_logger

log = get_logger(__name__)

CHURN_STEPS = 100
"""Steps in a row that each pushed an adapter out of a slot, after which a warning is due."""


class SlotCopies(Protocol):
    """What is known of copies into slots; the production class is `runner.AdapterStorage`."""

    num_copied_bytes: int

    def copy_seconds(self) -> float:
        """Time of those that are done."""
        ...


@dataclass(slots=True)
class AdapterSnapshots:
    """Notes about what was told; `rejects` are those of the last scan."""

    registry: AdapterRegistry
    contract: BankContract
    copies: SlotCopies
    descriptions: dict[int, AdapterDescription] = field(default_factory=dict)
    rejects: list[RejectedFolder] = field(default_factory=list)
    host_load_s: float = 0.0
    _has_new_rejects: bool = False
    _has_new_counts: bool = False
    _num_evictions: int = 0
    _num_churning_steps: int = 0

    def reject(self, rejects: list[RejectedFolder]) -> None:
        """These folders cannot be served."""
        if rejects != self.rejects:
            self.rejects, self._has_new_rejects = rejects, True

    def note_read(self, seconds: float) -> None:
        """Files of an adapter were read, whether anybody still wanted them or not."""
        self.host_load_s += seconds
        self._has_new_counts = True

    def everything(self) -> AdapterChanges:
        """For an API process that knows nothing."""
        states = [self._state(version) for version in self.registry.versions()]
        return AdapterChanges(states, [], self._counts(), self.rejects)

    @property
    def has_changes(self) -> bool:
        """Whether there is something to tell."""
        return self.registry.has_changes or self._has_new_rejects or self._has_new_counts

    def changes(self) -> AdapterChanges:
        """What was not told yet."""
        versions = self.registry.take_changed()
        gone = [version.version_id for version in versions if self.registry.is_gone(version)]
        states = [self._state(version) for version in versions if not self.registry.is_gone(version)]
        rejects = self.rejects if self._has_new_rejects else None
        self._has_new_rejects = self._has_new_counts = False
        return AdapterChanges(states, gone, self._counts(), rejects)

    def note_copies(self, copies: list[AdapterCopy]) -> None:
        """A step begins that copies these into slots first."""
        num_evictions, slots = self.registry.slots.num_evictions, self.registry.slots
        self._num_churning_steps = self._num_churning_steps + 1 if num_evictions > self._num_evictions else 0
        self._num_evictions = num_evictions
        if self._num_churning_steps == CHURN_STEPS:
            log.warning("adapter_slots_churn", num_steps=CHURN_STEPS, num_slots=len(slots), advice="raise --max-loras")
            self._num_churning_steps = 0
        for copy in copies:
            version = slots.holder(copy.slot)
            log.info("adapter_activated", name=version.name, digest=(version.digest or "")[:12], slot=copy.slot)

    def _state(self, version: AdapterVersion) -> AdapterState:
        host = AdapterTier.HOST if version.is_in_host else AdapterTier.DISK
        return AdapterState(
            version.version_id,
            self.descriptions[version.version_id],
            host if version.slot is None else AdapterTier.DEVICE,
            version.digest,
            is_current=version.is_current,
            is_pinned=version.is_pinned,
            num_requests=version.num_requests,
            num_leases=version.num_leases,
            num_running=version.num_running,
            num_hits=version.num_hits,
            last_used_ms=version.last_used_ms,
        )

    def _counts(self) -> AdapterCounts:
        host, slots = self.registry.host, self.registry.slots
        return AdapterCounts(
            num_host_hits=host.num_hits,
            num_host_misses=host.num_misses,
            num_host_loads=host.num_loads,
            num_host_evictions=host.num_evictions,
            host_load_s=self.host_load_s,
            num_in_host=len(host),
            host_bytes=host.num_bytes,
            num_device_hits=slots.num_hits,
            num_device_loads=slots.num_copies,
            num_device_evictions=slots.num_evictions,
            num_in_slots=slots.num_used,
            device_load_s=self.copies.copy_seconds(),
            device_load_bytes=self.copies.num_copied_bytes,
        )
