"""Starts a set of services, waits until they are ready, watches them, and stops all of them together.

Called by `launch`. Prints one line for each change of a service; what the services themselves say is in their log files.
It must not know which services these are, and it leaves none running, however it ends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tools.stack.probe import is_ready
from tools.stack.process import Process
from tools.stack.service import Service

STOP_S = 13.0
"""Seconds from SIGTERM to SIGKILL; `make up` promises that all is over after 15."""

_TICK_S = 0.1
_PROBE_INTERVAL_S = 0.5
_REMINDER_S = 30.0
_NUM_LOG_LINES = 20


class StopRequested(Exception):
    """A person or a process manager asked for the end."""


class ServiceDied(Exception):
    """A service ended by itself; the message says which, how, and what it logged last."""


class Supervisor:
    """The services of one launch; a context manager, which stops them at its end.

    Args:
        services: started in this order, all at once.
        log_dir: gets one file for each service, written anew.
        stop_s: seconds that the services have to stop after SIGTERM; then they are killed.
    """

    def __init__(self, services: Sequence[Service], log_dir: Path, stop_s: float = STOP_S) -> None:
        self._services = services
        self._log_dir = log_dir
        self._stop_s = stop_s
        self._processes: dict[str, Process] = {}
        self._is_stop_requested = False
        self._num_interrupts = 0

    def __enter__(self) -> Supervisor:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def start(self) -> None:
        """Start every service and wait until each one's `/ready` answers 200.

        Raises:
            StopRequested, ServiceDied.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        started_s = time.monotonic()
        for service in self._services:
            say(f"  {service.name:<10} starting on {service.url}")
            self._processes[service.name] = Process(service.command, service.environment, self._log(service.name))
        waiting = list(self._services)
        reminder_s = _REMINDER_S
        while waiting:
            self._pause(_PROBE_INTERVAL_S)
            for service in [each for each in waiting if is_ready(each)]:
                waiting.remove(service)
                say(f"  {service.name:<10} ready after {time.monotonic() - started_s:.1f} s")
            if waiting and time.monotonic() - started_s >= reminder_s:
                names = ", ".join(service.name for service in waiting)
                say(f"  after {reminder_s:.0f} s still waiting for: {names} (logs in {self._log_dir})")
                reminder_s += _REMINDER_S

    def watch(self) -> NoReturn:
        """Watch the services until there is a reason to end.

        Raises:
            StopRequested, ServiceDied.
        """
        while True:
            self._pause(_TICK_S)

    def run_beside(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run `command` in the terminal while watching the services; answers its exit code.

        Raises:
            StopRequested, ServiceDied.
        """
        program = Process(command, environment, None)
        try:
            while (exit_code := program.exit_code) is None:
                self._pause(_TICK_S)
            return exit_code
        finally:
            program.send(signal.SIGKILL)

    def _pause(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(_TICK_S)
            if self._is_stop_requested:
                raise StopRequested
            for name, process in self._processes.items():
                if process.exit_code is not None:
                    raise ServiceDied(self._describe_end(name, process.exit_code))

    def _stop(self) -> None:
        """SIGTERM to all; SIGKILL to what is left when the time is over or Ctrl-C comes a second time."""
        for process in self._processes.values():
            process.send(signal.SIGTERM)
        deadline_s = time.monotonic() + self._stop_s
        while self._running() and time.monotonic() < deadline_s and self._num_interrupts < 2:
            time.sleep(_TICK_S)
        for name in self._running():
            say(f"  {name:<10} did not stop in time, killed")
            self._processes[name].send(signal.SIGKILL)
        while self._running():
            time.sleep(_TICK_S)

    def _running(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.exit_code is None]

    def _describe_end(self, name: str, exit_code: int) -> str:
        how = f"with exit code {exit_code}" if exit_code >= 0 else f"by {signal.Signals(-exit_code).name}"
        lines = [f"    {line}" for line in self._processes[name].log_tail(_NUM_LOG_LINES)]
        return "\n".join([f"the {name} ended {how}; {self._log(name)} ends so:", *lines])

    def _log(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Only Ctrl-C counts: whoever sends SIGTERM to a process group reaches this process twice, directly and through make.
        self._num_interrupts += number == signal.SIGINT
        self._is_stop_requested = True


def say(line: str) -> None:
    """One line for the terminal, at once, also through a pipe."""
    print(line, flush=True)
