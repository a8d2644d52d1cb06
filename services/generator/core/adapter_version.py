"""One version of an adapter as the ledgers know it: who uses it, where it is, and, while it is in host memory, what it holds.

Written in `scheduler` only: by the registry, its two tiers and their policy of eviction, and by the Scheduler when it plans.
A name may have several versions while requests still run on an older one. A version that is on disk alone has no content yet:
whatever its folder holds when it is read is what it will be.
"""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class AdapterVersion:
    """Name and id never change; the rest is what the ledgers count.

    Attributes:
        version_id: never used again in this process.
        digest: of its content in hexadecimal, as it was last read; None where it never was.
        kv_digest: of the modules that influence cached keys and values; None where there are none.
        num_bytes: of its tensors in host memory.
        is_in_host: whether its tensors are in host memory; only then it can be leased.
        is_current: whether requests that name it get it; others run to their end on it.
        is_pinned: whether it keeps its place in host memory and its slot.
        num_requests: requests that were accepted with it and have not ended.
        num_leases: those of them that were admitted at some time, and so depend on its content.
        num_running: its sequences in the running batch; they keep it in its slot.
        last_step_id: last plan that reads it; the Scheduler's, -1 before the first.
        slot: where it is on the device, if it is.
        entered_ms: when the first of the sequences that run now entered, on the scheduler's clock.
        num_hits: requests that were admitted with it.
        last_used_ms: when the last of them was.
        num_uses, priority: of the policy of eviction; the least is evicted first.
    """

    name: str
    version_id: int
    digest: str | None = None
    kv_digest: bytes | None = None
    num_bytes: int = 0
    is_in_host: bool = False
    is_current: bool = True
    is_pinned: bool = False
    num_requests: int = 0
    num_leases: int = 0
    num_running: int = 0
    last_step_id: int = -1
    slot: int | None = None
    entered_ms: int = 0
    num_hits: int = 0
    last_used_ms: int | None = None
    num_uses: int = 0
    priority: int = 0
