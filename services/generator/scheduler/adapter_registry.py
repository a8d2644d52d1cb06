"""Ledger of adapters: which version a name means, which versions are in use, and through its two tiers where each of them is.

Called by the Scheduler, and between its steps by `engine.adapter_lifecycle`, which reads files. Owns names and counts, never a
tensor; must not import torch. A request *waits* for a version from the moment it is accepted; when it is admitted it *leases* it,
to its end, through preemption: a leased version stays in host memory as it is, whatever happens to its name or to its folder.
"""

from collections.abc import Iterable

from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.sequence import Sequence
from services.generator.scheduler.adapter_host import AdapterHost
from services.generator.scheduler.adapter_slots import AdapterSlots
from services.generator.scheduler.eviction import EvictionOrder, EvictionPolicy
from shared.errors import InternalError


class AdapterRegistry:
    """Knows every adapter of one engine.

    Args:
        num_slots: adapters on the device at one time; 0 where there is no bank.
        num_places: versions in host memory at one time; None for any number.
    """

    def __init__(self, num_slots: int, num_places: int | None = None, order: EvictionOrder = EvictionOrder.LRU) -> None:
        policy = EvictionPolicy(order)
        self.slots = AdapterSlots(num_slots, policy)
        self.host = AdapterHost(num_places, policy)
        self._policy = policy
        self._newest: dict[str, AdapterVersion] = {}
        self._retired: dict[AdapterVersion, None] = {}
        self._changed: dict[AdapterVersion, None] = {}
        self._freed: list[int] = []
        self._gone: list[AdapterVersion] = []
        self._next_id = 0

    # --- names ---

    def find(self, name: str) -> AdapterVersion | None:
        """What requests for `name` get from now on."""
        return self._newest.get(name)

    def register(self, name: str) -> AdapterVersion:
        """`name` is served from now on; its content is on disk, and so far unread."""
        version = AdapterVersion(name, self._next_id)
        self._next_id += 1
        self._newest[name] = version
        self._changed[version] = None
        return version

    def add(
        self, name: str, kv_digest: bytes | None, *, digest: str | None = None, num_bytes: int = 0
    ) -> AdapterVersion:
        """`name` with this content is in host memory, where `make_room` has made room for it.

        Requests that were accepted for a version that was in host memory before finish on that.
        """
        version = self._newest.get(name)
        if version is not None and version.is_in_host:
            was_pinned = version.is_pinned
            self._retire(version)
            version = self.register(name)
            version.is_pinned = was_pinned
        return self.fill(version or self.register(name), kv_digest, digest=digest, num_bytes=num_bytes)

    def fill(
        self, version: AdapterVersion, kv_digest: bytes | None, *, digest: str | None = None, num_bytes: int = 0
    ) -> AdapterVersion:
        """The content of a version that was on disk alone is in host memory."""
        version.digest, version.kv_digest, version.num_bytes = digest, kv_digest, num_bytes
        self.host.put(version)
        self._changed[version] = None
        return version

    def remove(self, name: str) -> None:
        """`name` is not served any more; what was accepted for it runs to its end."""
        self._retire(self._newest.pop(name))

    def pin(self, version: AdapterVersion, *, is_pinned: bool) -> None:
        """Whether a version in host memory keeps its place there and its slot; `can_pin` said yes."""
        version.is_pinned = is_pinned
        self.slots.review(version)
        self._changed[version] = None

    @property
    def can_pin(self) -> bool:
        """Whether a slot would be left for the others if one more version was pinned."""
        return sum(version.is_pinned for version in self._newest.values()) + 1 < len(self.slots)

    # --- host memory ---

    def make_room(self, *, is_urgent: bool = False) -> bool:
        """See that one more version fits into host memory; answers False where nothing there can leave.

        Args:
            is_urgent: whether versions that requests wait for, but have not leased, may have to leave.
        """
        if self.host.has_room:
            return True
        victim = self.host.victim(is_urgent=is_urgent)
        if victim is None:
            return False
        self._evict(victim)
        self.host.num_evictions += 1
        return True

    def next_wanted(self, longest_wait_since_ms: int) -> AdapterVersion | None:
        """The version that shall be read next; a place is reserved for it until `fill` or `give_up`.

        Args:
            longest_wait_since_ms: those wanted since before this time may push out others that are merely waited for.
        """
        first = self.host.first_wanted()
        if first is None or not self.make_room(is_urgent=first[1] <= longest_wait_since_ms):
            return None
        self.host.begin(first[0])
        return first[0]

    def give_up(self, version: AdapterVersion) -> None:
        """It could not be read; nobody may wait for it any more."""
        self.host.end(version)

    def take_freed(self) -> list[int]:
        """Ids of versions whose tensors nobody reads any more."""
        freed, self._freed = self._freed, []
        return freed

    def take_gone(self) -> list[AdapterVersion]:
        """Versions of which nothing is left."""
        gone, self._gone = self._gone, []
        return gone

    def settle(self, oldest_step_id: int) -> None:
        """Every plan before `oldest_step_id` has been committed."""
        self.host.settle(oldest_step_id)
        for version in list(self._retired):
            self._dispose(version)

    # --- requests ---

    def accept(self, version: AdapterVersion, now_ms: int) -> None:
        """A request was accepted that will run on `version`."""
        version.num_requests += 1
        self._changed[version] = None
        if version.is_in_host:
            self.host.num_hits += 1
        else:
            self.host.num_misses += 1
            self.host.want(version, now_ms)

    def lease(self, version: AdapterVersion, now_ms: int) -> None:
        """A request is admitted: from now on it depends on the content of `version`."""
        version.num_leases += 1
        version.num_hits += 1
        version.last_used_ms = now_ms
        self._changed[version] = None
        self._policy.touch(version)

    def release(self, version: AdapterVersion, *, was_leased: bool) -> None:
        """A request has ended."""
        version.num_requests -= 1
        version.num_leases -= was_leased
        self._changed[version] = None
        if version.num_requests == 0:
            self.host.forget_wish(version)
        if not version.is_current:
            self._dispose(version)

    @property
    def is_full(self) -> bool:
        """Whether there are slots and running sequences use all of them that are not pinned."""
        return len(self.slots) > 0 and not self.slots.has_idle

    def can_enter(self, version: AdapterVersion | None) -> bool:
        """Whether a sequence with `version` can join the running batch now; the base model always can."""
        return version is None or (version.is_in_host and (version.slot is not None or self.slots.has_idle))

    def enter(self, version: AdapterVersion, now_ms: int) -> None:
        """A sequence with `version` joins the running batch, for which `can_enter` said yes."""
        if version.num_running == 0:
            version.entered_ms = now_ms
        self._changed[version] = None
        victim = self.slots.enter(version)
        if victim is not None:
            self._changed[victim] = None

    def leave(self, version: AdapterVersion) -> None:
        """The sequence has left the running batch."""
        self.slots.leave(version)
        self._changed[version] = None

    def forget_slots(self) -> None:
        """Nothing is known of what the slots hold; nothing may be running."""
        self._changed.update(dict.fromkeys(self.slots.forget_all()))

    # --- all ---

    def versions(self) -> list[AdapterVersion]:
        """All there are, those too that only older requests still use."""
        return [*self._newest.values(), *self._retired]

    def retired(self) -> list[AdapterVersion]:
        """Those that only older requests still use."""
        return list(self._retired)

    def touch(self, version: AdapterVersion) -> None:
        """Something else that is told about it changed."""
        self._changed[version] = None

    def take_changed(self) -> list[AdapterVersion]:
        """Versions of which something is not as it was; those that are gone have neither requests nor a name."""
        changed, self._changed = list(self._changed), {}
        return changed

    @property
    def has_changes(self) -> bool:
        """Whether there is something to take."""
        return bool(self._changed)

    def is_gone(self, version: AdapterVersion) -> bool:
        """Whether nothing is left of it."""
        return not version.is_current and version not in self._retired

    def check_integrity(self, sequences: Iterable[Sequence], running: Iterable[Sequence]) -> None:
        """Raise InternalError where counts and holders disagree.

        Args:
            sequences: all that have not ended.
            running: those of the running batch.
        """
        all_sequences = list(sequences)
        requests = _counts(all_sequences)
        leases = _counts(sequence for sequence in all_sequences if sequence.has_lease)
        users = _counts(running)
        known = set(self.versions())
        is_right = all(
            version.num_requests == requests.get(version, 0)
            and version.num_leases == leases.get(version, 0)
            and version.num_running == users.get(version, 0)
            for version in known
        )
        if not is_right or not requests.keys() <= known:
            raise InternalError("a lease of an adapter is lost or miscounted; this is a bug")
        self.slots.check_integrity(known)
        self.host.check_integrity(known)

    def _retire(self, version: AdapterVersion) -> None:
        version.is_current = False
        self.pin(version, is_pinned=False)
        self._retired[version] = None
        self._dispose(version)

    def _dispose(self, version: AdapterVersion) -> None:
        """Let go of a version that has no name, if nobody uses it."""
        if version in self._retired and version.num_requests == 0 and self.host.is_settled(version):
            if version.is_in_host:
                self._evict(version)
            del self._retired[version]
            self._gone.append(version)
            self._changed[version] = None

    def _evict(self, version: AdapterVersion) -> None:
        self.slots.clear(version)
        self.host.remove(version)
        self._freed.append(version.version_id)
        self._changed[version] = None


def _counts(sequences: Iterable[Sequence]) -> dict[AdapterVersion, int]:
    counts: dict[AdapterVersion, int] = {}
    for sequence in sequences:
        if sequence.adapter is not None:
            counts[sequence.adapter] = counts.get(sequence.adapter, 0) + 1
    return counts
