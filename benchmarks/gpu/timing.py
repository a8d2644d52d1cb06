"""How the programs of this folder take time: the runs of one piece of work, and the parts of a whole program."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def time_runs(work: Callable[[], object], num_runs: int, *, num_warm_ups: int = 1) -> list[float]:
    """Seconds of each run, after some that do not count; the work waits for the device itself."""
    seconds = []
    for _ in range(num_warm_ups + num_runs):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return seconds[num_warm_ups:]


class Parts:
    """Where the time of a program goes, by the names of its parts."""

    def __init__(self) -> None:
        self._seconds = defaultdict[str, float](float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done within counts as this part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - began

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._seconds.items())
