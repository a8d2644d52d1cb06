"""What keeps the copies of adapters and the steps that read them apart: nothing on a CPU, on a GPU a stream for copies and events.

Used by `AdapterStorage`; touches no tensor. A copy waits for the last launched step that reads its slot, a step for the copies into
slots that it reads, and neither for anything else; the host never waits. So a copy into a slot that was idle runs beside the step
in flight, and most often is done when the step that needs it begins.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from services.generator.core.plan import IntArray
from services.generator.core.slots import NO_ADAPTER


class CopyOrder(Protocol):
    """Called in the order of plans."""

    def copying(self, slot: int) -> AbstractContextManager[None]:
        """Around the launch of a copy into `slot`."""
        ...

    def begin_reading(self, slots: IntArray) -> None:
        """Before the launch of a step whose rows have these slots [S] or NO_ADAPTER."""
        ...

    def end_reading(self, slots: IntArray) -> None:
        """After it."""
        ...

    def seconds(self) -> float:
        """Time that copies took which are known to be done."""
        ...


class ProgramOrder:
    """For a CPU: everything is done when its call returns."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @contextmanager
    def copying(self, slot: int) -> Iterator[None]:
        """Take the time."""
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began

    def begin_reading(self, slots: IntArray) -> None:
        """Nothing is to be waited for."""

    def end_reading(self, slots: IntArray) -> None:
        """Nor later."""

    def seconds(self) -> float:
        """Of all copies."""
        return self._seconds


class StreamOrder:
    """For a GPU. What is on the device when this is made is there before the first copy."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._copied: dict[int, torch.cuda.Event] = {}  # no step has waited for these yet
        self._read: dict[int, torch.cuda.Event] = {}
        self._timed: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._seconds = 0.0

    @contextmanager
    def copying(self, slot: int) -> Iterator[None]:
        """What is launched within goes to the copies' stream, where page-locked memory is then kept until it was read."""
        self._wait_for_readers(slot)
        with torch.cuda.stream(self._stream):
            began = _record(enable_timing=True)
            yield
            self._copied[slot] = _record(enable_timing=True)
        self._timed.append((began, self._copied[slot]))

    def begin_reading(self, slots: IntArray) -> None:
        """The step waits for copies into its own slots."""
        if self._copied:
            self._wait_for_copies(self._copied.keys() & set(slots.tolist()))

    def end_reading(self, slots: IntArray) -> None:
        """Copies into its slots wait for the step."""
        used = set(slots.tolist()) - {NO_ADAPTER}
        if used:
            self._read.update(dict.fromkeys(used, _record(enable_timing=False)))

    def seconds(self) -> float:
        """Of copies alone, from events that have passed; without the waiting before."""
        while self._timed and self._timed[0][1].query():  # type: ignore[no-untyped-call]
            began, ended = self._timed.popleft()
            self._seconds += began.elapsed_time(ended) / 1000
        return self._seconds

    def _wait_for_readers(self, slot: int) -> None:
        if slot in self._read:
            self._stream.wait_event(self._read[slot])

    def _wait_for_copies(self, slots: set[int]) -> None:
        for slot in slots:
            torch.cuda.current_stream().wait_event(self._copied.pop(slot))


def _record(*, enable_timing: bool) -> torch.cuda.Event:
    """An event behind all that the current stream was given."""
    event = torch.cuda.Event(enable_timing=enable_timing)  # type: ignore[no-untyped-call]
    event.record()
    return event
