"""A started program: its own process group, its log file, its end.

Called by the supervisor. Never leaves a program behind: on Linux the kernel kills it when the launcher is gone, however it went.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


class Process:
    """One running program.

    It gets a session of its own, so that Ctrl-C in the terminal reaches the launcher alone, which then stops all in order.

    Args:
        log: gets standard output and error, from its beginning; None leaves both on the terminal.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> None:
        self._log = log
        with contextlib.ExitStack() as stack:
            output = None if log is None else stack.enter_context(log.open("wb"))
            self._popen = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # safe: the launcher has one thread
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative is the number of the signal that ended it."""
        return self._popen.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal the process and what it started in its group; nothing happens if it has ended."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)

    def log_tail(self, num_lines: int) -> list[str]:
        """The last lines of the log."""
        if self._log is None:
            return []
        with self._log.open(encoding="utf-8", errors="replace") as lines:
            return [line.rstrip("\n") for line in deque(lines, maxlen=num_lines)]


def signal_at_parents_death(number: signal.Signals) -> None:
    """Have the kernel send this process `number` when its parent is gone; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))


def _die_with(parent_pid: int) -> Callable[[], None]:
    def in_child() -> None:
        signal_at_parents_death(signal.SIGKILL)
        if os.getppid() != parent_pid:  # gone before the line above
            os._exit(1)

    return in_child
