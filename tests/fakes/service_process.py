"""A service of this project as a real process, for end-to-end tests: started, awaited, talked to, signalled.

Its standard error goes to a file, shown when it does not come up.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx


def free_port() -> int:
    """A TCP port that nobody listens on right now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class ServiceProcess:
    """`python -m services.<name> ARGS` on a free port; a context manager that always ends it."""

    def __init__(self, name: str, log: Path, *args: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        environment = {**os.environ, "PYTHONWARNINGS": "default"}
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"services.{name}", "--port", str(self.port), *args],
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def wait_ready(self, timeout_s: float = 120) -> None:
        """Wait for `/ready` to be 200; fails with the log when the process ends or the time is over."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the service did not become ready:\n{self.log()}")

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def log(self) -> str:
        """What it wrote to standard error."""
        return self._log.read_text(errors="replace")

    def metric(self, name: str) -> float:
        """Value of one metric without labels."""
        for line in httpx.get(f"{self.url}/metrics", timeout=5).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")
