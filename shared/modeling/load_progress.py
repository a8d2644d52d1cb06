"""Tells whoever waits how far the loading of weights is: a bar in a terminal, else an event about every tenth.

Used by model loaders. A load that takes less than a few seconds says one thing only: that it is done.
"""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from shared.observability.logging import get_logger

log = get_logger(__name__)
GIB = 2**30
_BAR_WIDTH = 40


class LoadProgress:
    """Progress of one load.

    Args:
        total_bytes: what there is to load.
        stream: where a bar is drawn if it is a terminal.
        min_interval_s: least time between two reports.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        total_bytes: int,
        *,
        stream: TextIO | None = None,
        min_interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = max(total_bytes, 1)
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._min_interval_s = min_interval_s
        self._clock = clock
        self._start = self._reported_at = clock()
        self._done = 0
        self._reported_percent = 0

    def advance(self, num_bytes: int) -> None:
        """So many bytes more are loaded; reports when enough has changed."""
        self._done += num_bytes
        percent = 100 * self._done // self._total
        now = self._clock()
        step = 1 if self._is_terminal else 10
        if percent - self._reported_percent < step or now - self._reported_at < self._min_interval_s or percent >= 100:
            return
        self._reported_percent, self._reported_at = percent, now
        if self._is_terminal:
            self._draw(percent)
        else:
            log.info("weights_loading", percent=percent, loaded_gib=round(self._done / GIB, 3))

    def finish(self) -> None:
        """Everything is loaded."""
        if self._is_terminal and self._reported_percent:
            self._stream.write("\r\x1b[K")  # the bar gives way to the line below
        log.info("weights_loaded", gib=round(self._done / GIB, 3), seconds=round(self._clock() - self._start, 2))

    def _draw(self, percent: int) -> None:
        filled = _BAR_WIDTH * percent // 100
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        self._stream.write(f"\rloading weights [{bar}] {percent:3d}% of {self._total / GIB:.2f} GiB")
        self._stream.flush()
