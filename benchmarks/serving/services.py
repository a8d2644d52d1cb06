"""Starts services for a benchmark on free ports, with their logs in a temporary folder, and stops them in the end.

Used by the benchmarks in this folder. Measures nothing.
"""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 20


@dataclass(frozen=True)
class Service:
    """A service to start: its package, its port, its flags, and the path that answers 200 once it has started."""

    name: str
    port: int
    flags: tuple[str, ...]
    started_path: str

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"


def service(name: str, *flags: str, started_path: str = "/ready") -> Service:
    """A service on a free port; a gateway without all of its services is never ready, so `/health` must do there."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return Service(name, sock.getsockname()[1], flags, started_path)


@contextlib.contextmanager
def running(*services: Service) -> Iterator[dict[str, int]]:
    """Run `services` until the block ends; they have started when it begins. Gives the process id of each by its name."""
    with tempfile.TemporaryDirectory(prefix="trivium-bench-") as folder, contextlib.ExitStack() as stack:
        processes = []
        for item in services:
            log = stack.enter_context((Path(folder) / f"{item.name}.log").open("wb"))
            command = [sys.executable, "-m", f"services.{item.name}", "--port", str(item.port), *item.flags]
            processes.append(subprocess.Popen(command, stderr=log))
            stack.callback(_stop, processes[-1])
        for item, process in zip(services, processes, strict=True):
            _wait_started(item, process, Path(folder) / f"{item.name}.log")
        yield {item.name: process.pid for item, process in zip(services, processes, strict=True)}


def _wait_started(item: Service, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{item.url}{item.started_path}", timeout=5) as response,
        ):
            if response.status == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"{item.name} did not start:\n{log.read_text(errors='replace')[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
