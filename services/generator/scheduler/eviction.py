"""Which adapter leaves a tier that is full: the one whose last use is the longest ago, or the one that is used the least.

Used by the ledgers of slots and of host memory, which say who may leave at all.
"""

from collections.abc import Iterable
from enum import StrEnum

from services.generator.core.adapter_version import AdapterVersion


class EvictionOrder(StrEnum):
    """As `--lora-eviction` names it."""

    LRU = "lru"
    LFU = "lfu"


class EvictionPolicy:
    """Keeps the priorities of all versions.

    LRU counts all uses, and a version's priority is the number of its last. LFU is LFU with dynamic ageing ("Evaluating content
    management techniques for Web proxy caches", Arlitt et al. 2000): a version's priority is its own uses plus the age, which is
    the priority of what was evicted last, so that what was popular once does not stay for ever.
    """

    def __init__(self, order: EvictionOrder) -> None:
        self._order = order
        self._clock = 0

    def touch(self, version: AdapterVersion) -> None:
        """A request was admitted with `version`, or it has just been loaded."""
        version.num_uses += 1
        if self._order is EvictionOrder.LRU:
            self._clock += 1
            version.priority = self._clock
        else:
            version.priority = self._clock + version.num_uses

    def choose(self, candidates: Iterable[AdapterVersion]) -> AdapterVersion | None:
        """The one of `candidates` to evict."""
        victim = min(candidates, key=lambda version: version.priority, default=None)
        if victim is not None and self._order is EvictionOrder.LFU:
            self._clock = max(self._clock, victim.priority)
        return victim
