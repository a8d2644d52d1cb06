"""One version of an adapter as the ledgers know it: who it is, who uses it, where it is.

Written by `scheduler.adapter_registry` only. A name may have several versions while requests still run on an older one.
"""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class AdapterVersion:
    """Identity never changes; the rest is the registry's.

    Attributes:
        version_id: never used again in this process.
        kv_digest: of the modules that influence cached keys and values; None where there are none.
        num_leases: requests that were accepted with it and have not ended.
        num_running: its sequences in the running batch; they keep it in its slot.
        slot: where it is on the device, if it is.
        entered_ms: when the first of the sequences that run now entered, on the scheduler's clock.
    """

    name: str
    version_id: int
    kv_digest: bytes | None
    num_leases: int = 0
    num_running: int = 0
    slot: int | None = None
    entered_ms: int = 0
