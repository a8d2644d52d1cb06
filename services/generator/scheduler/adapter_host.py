"""Ledger of host memory for adapters: which versions are there, which must leave for others, what is wanted from disk.

Called by `AdapterRegistry` only. Owns counts, never a tensor; must not import torch.
Invariant (`check_integrity`): versions in host memory and places reserved for those on their way never exceed the budget, and
whatever is leased, pinned or in a slot is in host memory.

A version leaves only when every plan that may read it has been committed. One that no request waits for leaves first; where there
is none, one that is merely waited for gives way to one that has been wanted too long.
"""

from services.generator.core.adapter_version import AdapterVersion
from services.generator.scheduler.eviction import EvictionPolicy
from shared.errors import InternalError


class AdapterHost:
    """All places.

    Args:
        num_places: versions in host memory at one time; None for any number.

    Attributes:
        num_loads: versions that came in.
        num_evictions: those that had to leave for others.
        num_hits, num_misses: requests whose adapter was in host memory when they were accepted, or was not.
    """

    def __init__(self, num_places: int | None, policy: EvictionPolicy) -> None:
        self._num_places = num_places
        self._policy = policy
        self._versions: dict[AdapterVersion, None] = {}
        self._wanted: dict[AdapterVersion, int] = {}
        self._on_their_way: dict[AdapterVersion, None] = {}
        self._oldest_step_id = 0
        self.num_loads = 0
        self.num_evictions = 0
        self.num_hits = 0
        self.num_misses = 0

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def num_bytes(self) -> int:
        """Of everything in host memory."""
        return sum(version.num_bytes for version in self._versions)

    def settle(self, oldest_step_id: int) -> None:
        """Every plan before `oldest_step_id` has been committed."""
        self._oldest_step_id = oldest_step_id

    def is_settled(self, version: AdapterVersion) -> bool:
        """Whether no plan in flight reads it."""
        return version.last_step_id < self._oldest_step_id and version.num_running == 0

    @property
    def has_room(self) -> bool:
        """Whether one more version fits in."""
        return self._num_places is None or len(self._versions) + len(self._on_their_way) < self._num_places

    def victim(self, *, is_urgent: bool) -> AdapterVersion | None:
        """Who leaves when one more has to come in.

        Args:
            is_urgent: whether those that requests wait for may be chosen.
        """
        free = [
            version
            for version in self._versions
            if version.num_leases == 0 and version.is_current and not version.is_pinned and self.is_settled(version)
        ]
        unused = [version for version in free if version.num_requests == 0]
        return self._policy.choose(unused or (free if is_urgent else ()))

    def want(self, version: AdapterVersion, now_ms: int) -> None:
        """Some request waits for a version that is not here."""
        if version not in self._on_their_way:
            self._wanted.setdefault(version, now_ms)

    def forget_wish(self, version: AdapterVersion) -> None:
        """No request waits for it any more."""
        self._wanted.pop(version, None)

    def first_wanted(self) -> tuple[AdapterVersion, int] | None:
        """The version that has been wanted the longest, and since when."""
        return next(iter(self._wanted.items()), None)

    def begin(self, version: AdapterVersion) -> None:
        """It is being read; a place is kept for it."""
        self.forget_wish(version)
        self._on_their_way[version] = None

    def end(self, version: AdapterVersion) -> None:
        """It came, or it does not come."""
        self._on_their_way.pop(version, None)

    def put(self, version: AdapterVersion) -> None:
        """A version is in host memory now."""
        self.end(version)
        self.forget_wish(version)
        self._versions[version] = None
        version.is_in_host = True
        version.num_uses = 0
        self._policy.touch(version)
        self.num_loads += 1

    def remove(self, version: AdapterVersion) -> None:
        """It is not any more."""
        del self._versions[version]
        version.is_in_host = False

    def check_integrity(self, known: set[AdapterVersion]) -> None:
        """Raise InternalError where memory and versions disagree.

        Args:
            known: all versions there are.
        """
        is_right = all(
            version.is_in_host == (version in self._versions)
            and (version.is_in_host or not (version.num_leases or version.is_pinned or version.slot is not None))
            for version in known
        )
        num_taken = len(self._versions) + len(self._on_their_way)
        is_within = self._num_places is None or num_taken <= self._num_places
        if not is_right or not is_within or not set(self._versions) <= known:
            raise InternalError("a place of an adapter in host memory is lost or miscounted; this is a bug")
