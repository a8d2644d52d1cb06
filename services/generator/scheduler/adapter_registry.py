"""Ledger of adapters: which version a name means, which versions are in use, which of them has which device slot.

Called by the Scheduler only. Owns names, counts and slot numbers, never a tensor; must not import torch.
Invariant (`check_integrity`): a slot is idle exactly when no running sequence uses what is in it.

A slot keeps its adapter until another one needs it, the least recently used first. Whoever enters an adapter that is on no slot
causes a copy, which is part of the very next plan: the device runs plans in order, so steps in flight still read what they expect.
"""

from collections import OrderedDict
from collections.abc import Iterable

from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.plan import AdapterCopy
from services.generator.core.sequence import Sequence
from shared.errors import InternalError


class AdapterRegistry:
    """Knows every adapter of one engine.

    Args:
        num_slots: adapters on the device at one time; 0 where there is no bank.
    """

    def __init__(self, num_slots: int) -> None:
        self._newest: dict[str, AdapterVersion] = {}
        self._slots: list[AdapterVersion | None] = [None] * num_slots
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_slots))
        self._copies: list[AdapterCopy] = []
        self._next_id = 0

    def add(self, name: str, kv_digest: bytes | None) -> AdapterVersion:
        """A new version of `name`; requests that run on an older one finish on that."""
        version = AdapterVersion(name, self._next_id, kv_digest)
        self._next_id += 1
        self._newest[name] = version
        return version

    def find(self, name: str) -> AdapterVersion | None:
        """The newest version of `name`."""
        return self._newest.get(name)

    def lease(self, version: AdapterVersion) -> None:
        """A request will run on `version` and no other."""
        version.num_leases += 1

    def release(self, version: AdapterVersion) -> None:
        """That request has ended."""
        version.num_leases -= 1

    @property
    def is_full(self) -> bool:
        """Whether there are slots and running sequences use all of them."""
        return bool(self._slots) and not self._idle

    def can_enter(self, version: AdapterVersion | None) -> bool:
        """Whether a sequence with `version` can join the running batch now; the base model always can."""
        return version is None or version.slot is not None or len(self._idle) > 0

    def enter(self, version: AdapterVersion, now_ms: int) -> None:
        """A sequence with `version` joins the running batch, for which `can_enter` said yes."""
        if version.slot is None:
            self._take_slot(version)
        if version.num_running == 0 and version.slot is not None:
            del self._idle[version.slot]
            version.entered_ms = now_ms
        version.num_running += 1

    def leave(self, version: AdapterVersion) -> None:
        """The sequence has left the running batch; its adapter stays where it is until the slot is needed."""
        version.num_running -= 1
        if version.num_running == 0 and version.slot is not None:
            self._idle[version.slot] = None

    def take_copies(self) -> list[AdapterCopy]:
        """What the next plan has to copy into slots before its forward pass."""
        copies, self._copies = self._copies, []
        return copies

    def longest_running(self) -> AdapterVersion | None:
        """Of the versions whose sequences run, the one that has had its slot the longest."""
        busy = [version for version in self._slots if version is not None and version.num_running > 0]
        return min(busy, key=lambda version: version.entered_ms, default=None)

    def forget_slots(self) -> None:
        """Nothing is known of what the slots hold; nothing may be running."""
        for version in self._slots:
            if version is not None:
                version.slot = None
        self._slots = [None] * len(self._slots)
        self._copies.clear()

    def check_integrity(self, sequences: Iterable[Sequence], running: Iterable[Sequence]) -> None:
        """Raise InternalError where counts and holders disagree.

        Args:
            sequences: all that have not ended.
            running: those of the running batch.
        """
        leases, users = _counts(sequences), _counts(running)
        known = {*self._newest.values(), *leases, *(version for version in self._slots if version is not None)}
        idle = {slot for slot, version in enumerate(self._slots) if version is None or version.num_running == 0}
        is_right = all(
            version.num_leases == leases.get(version, 0)
            and version.num_running == users.get(version, 0)
            and (version.slot is None or self._slots[version.slot] is version)
            for version in known
        )
        if not is_right or idle != set(self._idle):
            raise InternalError("an adapter slot or lease is lost or miscounted; this is a bug")

    def _take_slot(self, version: AdapterVersion) -> None:
        slot = next(iter(self._idle))
        before = self._slots[slot]
        if before is not None:
            before.slot = None
        self._slots[slot], version.slot = version, slot
        self._copies.append(AdapterCopy(slot, version.version_id))


def _counts(sequences: Iterable[Sequence]) -> dict[AdapterVersion, int]:
    counts: dict[AdapterVersion, int] = {}
    for sequence in sequences:
        if sequence.adapter is not None:
            counts[sequence.adapter] = counts.get(sequence.adapter, 0) + 1
    return counts
