"""Which waiting requests are past the time at which their clients still want an answer.

Used by the Scheduler, which ends them before they are started. Reads the clock only where some request has a deadline.
"""

import time
from collections.abc import Callable, Iterable

from services.generator.core.request import Request
from services.generator.core.sequence import Sequence, SequenceStatus

Clock = Callable[[], int]
"""The unix time in milliseconds, as deadlines are written."""


def unix_ms() -> int:
    """The clock of this host, which is the API process's too."""
    return time.time_ns() // 1_000_000


class Deadlines:
    """Remembers the earliest deadline that may be waiting, so that a step looks at the queue only once that is past."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._earliest_ms: int | None = None

    def note(self, request: Request) -> None:
        """A request begins to wait."""
        deadline = request.deadline_ms
        if deadline is not None and (self._earliest_ms is None or deadline < self._earliest_ms):
            self._earliest_ms = deadline

    def past(self, waiting: Iterable[Sequence]) -> list[Sequence]:
        """Those of `waiting` that have not been started and are not wanted any more."""
        if self._earliest_ms is None or (now_ms := self._clock()) < self._earliest_ms:
            return []
        unstarted = [
            (sequence.request.deadline_ms, sequence)
            for sequence in waiting
            if sequence.request.deadline_ms is not None and sequence.status is SequenceStatus.WAITING
        ]
        self._earliest_ms = min((deadline for deadline, _ in unstarted if deadline > now_ms), default=None)
        return [sequence for deadline, sequence in unstarted if deadline <= now_ms]
