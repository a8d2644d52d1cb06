"""One compose project of this test's own: its commands, its address, its end.

Used by __main__ only. Every command and all it prints goes to a log file.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

FILES = ("docker-compose.yml", "deploy/compose/cpu.yml", "deploy/compose/vision.yml")
MIN_COMPOSE = (2, 24)
"""The first release with `!reset` and with files of variables that may be missing."""


class ComposeError(Exception):
    """A command failed."""


class Compose:
    """The stack of the clone in `folder`, under a name and on a port that nobody else has."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder = folder
        self._log = log.open("w", encoding="utf-8")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # Nothing of the caller's own stack: neither its models nor its settings.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("TRIVIUM_", "COMPOSE_"))}
        self._environ = {**environ, "TRIVIUM_PORT": str(port), "COMPOSE_PROJECT_NAME": f"trivium-test-{os.getpid()}"}

    def __call__(self, *arguments: str) -> str:
        """Run `docker compose` with these arguments; answers what it printed.

        Raises:
            ComposeError: it failed; the message has the end of its output.
        """
        command = ["docker", "compose", *(part for file in FILES for part in ("--file", file)), *arguments]
        self._log.write(f"$ {' '.join(command)}\n")
        ended = subprocess.run(
            command, cwd=self._folder, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._log.write(ended.stdout)
        self._log.flush()
        if ended.returncode != 0:
            tail = "\n".join(ended.stdout.splitlines()[-15:])
            raise ComposeError(f"`docker compose {' '.join(arguments)}` ended with {ended.returncode}:\n{tail}")
        return ended.stdout

    def metrics(self, service: str | None = None, index: int = 1) -> str:
        """What the gateway, or replica `index` of a service inside, says about itself."""
        if service is None:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
        probe = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:8002/metrics').read().decode())"
        return self("exec", "-T", "--index", str(index), service, "python", "-c", probe)

    def log_state(self) -> None:
        """Put the state and the last lines of every container into the log file."""
        for arguments in (["ps", "--all"], ["logs", "--no-color", "--tail", "60"]):
            try:
                self(*arguments)
            except ComposeError as error:
                self._log.write(f"{error}\n")

    def remove(self) -> None:
        """Take everything away that this project made."""
        self("down", "--volumes", "--remove-orphans", "--rmi", "local", "--timeout", "5")
        self._log.close()


def why_not() -> str | None:
    """Why containers cannot be tried here, or None."""
    if shutil.which("docker") is None:
        return "there is no docker command here"
    try:
        engine = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, timeout=20
        )
    except subprocess.TimeoutExpired:
        return "the container engine does not answer"
    if engine.returncode != 0:
        return f"no container engine answers ({engine.stderr.strip().splitlines()[-1]})"
    compose = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True, text=True)
    version = re.search(r"(\d+)\.(\d+)", compose.stdout)
    if compose.returncode != 0 or version is None:
        return "docker has no compose plugin here"
    if (int(version[1]), int(version[2])) < MIN_COMPOSE:
        return f"docker compose {compose.stdout.strip()} is older than {'.'.join(map(str, MIN_COMPOSE))}"
    return None
