"""Ledger of the slots of the adapter bank: which version is in which, and which slots the next newcomer may take.

Called by `AdapterRegistry` only. Owns slot numbers, never a tensor; must not import torch.
Invariant (`check_integrity`): a slot is idle exactly when no running sequence uses what is in it and that is not pinned.

A slot keeps its adapter until another one needs it. Whoever enters an adapter that is on no slot causes a copy, which is part of
the very next plan: the device runs plans in order, so steps in flight still read what they expect.
"""

from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.plan import AdapterCopy
from services.generator.scheduler.eviction import EvictionPolicy
from shared.errors import InternalError


class AdapterSlots:
    """All slots.

    Attributes:
        num_copies: versions that were put into a slot.
        num_evictions: those of them for which another one had to leave.
        num_hits: sequences that entered and found their adapter in a slot.
    """

    def __init__(self, num_slots: int, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._slots: list[AdapterVersion | None] = [None] * num_slots
        self._idle: dict[int, None] = dict.fromkeys(range(num_slots))
        self._copies: list[AdapterCopy] = []
        self.num_copies = 0
        self.num_evictions = 0
        self.num_hits = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def has_idle(self) -> bool:
        """Whether a newcomer finds a slot."""
        return bool(self._idle)

    @property
    def num_used(self) -> int:
        """Slots that hold something."""
        return sum(version is not None for version in self._slots)

    def holder(self, slot: int) -> AdapterVersion:
        """Whose slot it is."""
        version = self._slots[slot]
        if version is None:
            raise InternalError(f"slot {slot} holds no adapter; this is a bug")
        return version

    def enter(self, version: AdapterVersion) -> AdapterVersion | None:
        """A sequence with `version` joins the running batch; answers the version that had to leave its slot for that."""
        victim = None
        if version.slot is None:
            victim = self._take(version)
        else:
            self.num_hits += 1
            self._idle.pop(version.slot, None)
        version.num_running += 1
        return victim

    def leave(self, version: AdapterVersion) -> None:
        """The sequence has left the running batch; its adapter stays where it is until the slot is needed."""
        version.num_running -= 1
        self.review(version)

    def review(self, version: AdapterVersion) -> None:
        """Whether its slot is idle may have changed."""
        if version.slot is None:
            return
        if version.num_running == 0 and not version.is_pinned:
            self._idle[version.slot] = None
        else:
            self._idle.pop(version.slot, None)

    def clear(self, version: AdapterVersion) -> None:
        """Forget a version that nobody uses."""
        if version.slot is not None:
            self._copies = [copy for copy in self._copies if copy.slot != version.slot]
            self._slots[version.slot] = None
            self._idle[version.slot] = None
            version.slot = None

    def take_copies(self) -> list[AdapterCopy]:
        """What the next plan has to copy into slots before its forward pass."""
        copies, self._copies = self._copies, []
        return copies

    def longest_running(self) -> AdapterVersion | None:
        """Of the versions whose sequences run and that can give way, the one that has had its slot the longest."""
        busy = [
            version for version in self._slots if version is not None and version.num_running and not version.is_pinned
        ]
        return min(busy, key=lambda version: version.entered_ms, default=None)

    def forget_all(self) -> list[AdapterVersion]:
        """Nothing is known of what the slots hold; nothing may be running. Answers the versions that were there."""
        held = [version for version in self._slots if version is not None]
        for version in held:
            self.clear(version)
        self._copies.clear()
        return held

    def check_integrity(self, known: set[AdapterVersion]) -> None:
        """Raise InternalError where slots and versions disagree.

        Args:
            known: all versions there are.
        """
        held = {version for version in self._slots if version is not None}
        idle = {
            slot
            for slot, version in enumerate(self._slots)
            if version is None or (version.num_running == 0 and not version.is_pinned)
        }
        is_right = all(version.slot is None or self._slots[version.slot] is version for version in known)
        if not is_right or not held <= known or idle != set(self._idle):
            raise InternalError("an adapter slot is lost or held twice; this is a bug")

    def _take(self, version: AdapterVersion) -> AdapterVersion | None:
        victim = None
        slot = next((slot for slot in self._idle if self._slots[slot] is None), None)
        if slot is None:
            victim = self._policy.choose(before for slot in self._idle if (before := self._slots[slot]) is not None)
            if victim is None or victim.slot is None:
                raise InternalError("an adapter entered without a slot to be had; this is a bug")
            slot, victim.slot = victim.slot, None
            self.num_evictions += 1
        del self._idle[slot]
        self._slots[slot], version.slot = version, slot
        self._copies.append(AdapterCopy(slot, version.version_id))
        self.num_copies += 1
        return victim
