"""One stack at a time in a checkout: a locked file that names the launcher's process.

Held by the launch, asked by `down`. The kernel gives the lock back when the launcher is gone, however it went.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STOP_S = 20.0


class AlreadyRunning(Exception):
    """Another launcher holds the lock."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"a stack of this checkout is running already (process {pid}); `make down` stops it")
        self.pid = pid


@contextmanager
def run_lock(file: Path) -> Iterator[None]:
    """Hold the lock.

    Raises:
        AlreadyRunning.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="ascii") as content:
        try:
            fcntl.flock(content, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            content.seek(0)
            raise AlreadyRunning(int(content.read() or 0)) from None
        content.truncate(0)
        content.write(str(os.getpid()))
        content.flush()
        yield
        content.truncate(0)


def stop_holder(file: Path) -> bool:
    """Ask the launcher that holds the lock to stop and wait until it has; False if there is none.

    Raises:
        TimeoutError: it still runs.
    """
    deadline_s = time.monotonic() + _STOP_S
    is_asked = False
    while time.monotonic() < deadline_s:
        try:
            with run_lock(file):
                return is_asked
        except AlreadyRunning as holder:
            if not is_asked and holder.pid:
                os.kill(holder.pid, signal.SIGTERM)
                is_asked = True
        time.sleep(0.1)
    raise TimeoutError(f"the launcher still runs after {_STOP_S:.0f} s")
