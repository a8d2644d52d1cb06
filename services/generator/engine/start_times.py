"""Seconds that each part of a start takes, for the line `start_times` of the log.

Filled by `engine.build` and `engine.runner_start`. A part that is left by an error is not counted: the start has failed.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StartTimes:
    """Parts in the order in which they began."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what happens within; the device's work is part of it as far as it is waited for."""
        began = time.perf_counter()
        yield
        self._parts[name] = time.perf_counter() - began

    def in_seconds(self) -> dict[str, float]:
        """Each part, what is in none, and the total, as fields of a log line."""
        total = time.perf_counter() - self._began
        parts = {**self._parts, "rest": total - sum(self._parts.values()), "total": total}
        return {f"{name}_s": round(seconds, 2) for name, seconds in parts.items()}
