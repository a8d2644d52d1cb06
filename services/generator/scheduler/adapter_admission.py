"""What adapters mean for sequences that wait: who must wait for one, for how long, and what clients are told of it.

Used by the Scheduler, and by the engine loop when an adapter cannot be read. Decides; the registry counts. Must not import torch.
"""

from dataclasses import replace

from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.messages import TokenEvent
from services.generator.core.request import FinishReason
from services.generator.core.sequence import Sequence, SequenceStatus
from services.generator.scheduler.adapter_registry import AdapterRegistry
from services.generator.scheduler.deadlines import Clock
from services.generator.scheduler.sequence_queues import SequenceQueues


class AdapterAdmission:
    """The waiting queue as adapters see it.

    Args:
        max_wait_ms: see `Scheduler`.
    """

    def __init__(self, adapters: AdapterRegistry, queues: SequenceQueues, clock: Clock, max_wait_ms: int) -> None:
        self._adapters = adapters
        self._queues = queues
        self._clock = clock
        self._max_wait_ms = max_wait_ms

    def make_room(self) -> None:
        """Preempt the rows of one resident adapter for a sequence that has waited too long for a slot.

        An adapter keeps its slot for `max_wait_ms` at least, so more adapters than slots take turns of that length.
        """
        victim = self._adapters.slots.longest_running() if self._adapters.is_full else None
        longest_blocked_ms = self._clock() - self._max_wait_ms
        if victim is None or victim.entered_ms > longest_blocked_ms:
            return
        blocked = ((s.blocked_since_ms, s) for s in self._queues.waiting if s.blocked_since_ms is not None)
        since_ms, starving = min(blocked, key=lambda item: item[0], default=(None, None))
        if since_ms is None or starving is None or since_ms > longest_blocked_ms:
            return
        for sequence in [s for s in reversed(self._queues.running) if s.adapter is victim]:
            self._queues.preempt(sequence)
        self._queues.put_first(starving)

    def pass_over(self, sequence: Sequence) -> None:
        """Its adapter is on no slot, and none is free, or not even in host memory."""
        if sequence.adapter is not None and not sequence.adapter.is_in_host:
            self._adapters.host.want(sequence.adapter, self._clock())
        elif sequence.blocked_since_ms is None:
            sequence.blocked_since_ms = self._clock()

    def end_waiting(self, adapter: AdapterVersion, problem: str) -> list[tuple[str, TokenEvent]]:
        """End the requests that wait for an adapter that cannot be read; answers (frontend_id, event) for each."""
        events = []
        for sequence in self._queues.not_running:
            if sequence.adapter is adapter and not sequence.has_lease:
                self._queues.finish(sequence)
                event = TokenEvent(sequence.request.request_id, [], FinishReason.BAD_ADAPTER, problem=problem)
                events.append((sequence.request.frontend_id, event))
        return events

    def take_admitted(self) -> list[tuple[str, TokenEvent]]:
        """Which adapters the requests got that were admitted since this was asked last."""
        admitted, self._queues.admitted = self._queues.admitted, []
        return [
            (s.request.frontend_id, TokenEvent(s.request.request_id, [], adapter_digest=s.adapter.digest))
            for s in admitted
            if s.adapter is not None and s.status is not SequenceStatus.FINISHED
        ]


def identify(sequence: Sequence) -> None:
    """What its KV depends on is certain when it is admitted first: until then its adapter may be read anew, and be another."""
    if sequence.adapter is None or sequence.has_lease:
        return
    salt = replace(sequence.salt, adapter_digest=sequence.adapter.kv_digest)
    if salt != sequence.salt:
        sequence.salt = salt
        sequence.block_keys.clear()
