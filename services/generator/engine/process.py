"""Starts, watches and stops the engine process of an API process.

Called by `app.py`. The engine is `python -m services.generator.engine SETTINGS_JSON`; it must not be a fork, because the parent
has threads. Must not import torch.
"""

import asyncio
import contextlib
import sys

from services.generator.settings import GeneratorSettings
from shared.observability.logging import get_logger

log = get_logger(__name__)


class EngineProcess:
    """One engine subprocess.

    Args:
        settings: handed over whole, as one JSON argument.
        address: where the engine shall bind its transport.
    """

    def __init__(self, settings: GeneratorSettings, address: str) -> None:
        self._settings = settings
        self._address = address
        self._process: asyncio.subprocess.Process | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code, once the process has ended."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start the subprocess; it loads the model and then answers on its address."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.generator.engine",
            self._settings.for_engine(),
            self._address,
            stdin=asyncio.subprocess.PIPE,  # closed when this process is gone, which ends the engine
            start_new_session=True,  # Ctrl-C in a terminal reaches the API process only, which stops the engine in order
        )
        log.info("engine_started", pid=self._process.pid)

    async def wait(self) -> None:
        """Wait for the end of the process."""
        assert self._process is not None  # noqa: S101 - started before
        await self._process.wait()

    async def stop(self, timeout_s: float) -> None:
        """Wait for the process to leave after it was asked to; kill it when it does not."""
        if self._process is None or self._process.returncode is not None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()  # the engine leaves at once, even if it is still loading
        with contextlib.suppress(ProcessLookupError):
            try:
                await asyncio.wait_for(self._process.wait(), timeout_s)
            except TimeoutError:
                log.warning("engine_killed", pid=self._process.pid)
                self._process.kill()
                await self._process.wait()
