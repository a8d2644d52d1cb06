"""Keeps one engine process alive: starts it, listens to it, and starts it again with growing pauses when it dies.

Called by `app.py`, on the event loop. Owns the processes one after another; who waits for answers is the handle's business.
Must not import torch.
"""

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from services.generator.engine.handle import EngineHandle, EngineState
from services.generator.engine.process import EngineProcess
from services.generator.settings import GeneratorSettings
from shared.observability.logging import get_logger

log = get_logger(__name__)

STABLE_S = 60.0
"""An engine that served this long starts the count of failures anew when it dies."""
LONGEST_PAUSE_S = 30.0
STOP_S = 1.5
"""What an engine may take to leave when it is told to."""


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """Why no engine runs any more.

    Attributes:
        was_ready: whether one ever was; where none was, the settings or the model are at fault, and to try again is no use.
    """

    reason: str
    was_ready: bool


class EngineSupervisor:
    """One engine at a time; each has a socket of its own, so none reads what was sent to the one before it.

    Args:
        handle: told where the engine is and when it died.
    """

    def __init__(self, settings: GeneratorSettings, handle: EngineHandle) -> None:
        self._settings = settings
        self._handle = handle
        self._sockets = tempfile.TemporaryDirectory(prefix="trivium-")
        self._process: EngineProcess | None = None
        self._events: asyncio.Task[None] | None = None
        self.num_restarts = 0

    async def run(self) -> EngineEnd:
        """Keep an engine alive until that has failed too often in a row."""
        num_failures, was_ready = 0, False
        while True:
            reason = await self._run_engine()
            ready_at = self._handle.ready_at
            was_ready = was_ready or ready_at is not None
            if ready_at is not None and time.monotonic() - ready_at > STABLE_S:
                num_failures = 0
            num_failures += 1
            if not was_ready or num_failures > self._settings.max_engine_restarts:
                self._handle.lose_engine(EngineState.DEAD)
                return EngineEnd(reason, was_ready)
            self._handle.lose_engine(EngineState.RESTARTING)
            pause_s = pause_before(num_failures)
            log.error("engine_restarts", reason=reason, num_failures=num_failures, pause_s=pause_s)
            self.num_restarts += 1
            await asyncio.sleep(pause_s)

    async def stop(self) -> None:
        """End the engine that runs, once `run` was cancelled."""
        self._handle.shutdown()
        if self._process is not None:
            await self._process.stop(STOP_S)
        await self._end_events()
        self._sockets.cleanup()

    async def _run_engine(self) -> str:
        """Start an engine and wait for its end; answers why it ended."""
        address = f"ipc://{Path(self._sockets.name) / f'engine-{self.num_restarts}.sock'}"
        self._process = EngineProcess(self._settings, address)
        await self._process.start()
        self._events = asyncio.create_task(self._handle.run(address), name="engine-events")
        end = asyncio.create_task(self._process.wait(), name="engine-end")
        try:
            await asyncio.wait({end, self._events}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            end.cancel()
        if not self._events.done():
            await self._end_events()
            return f"the engine process ended with exit code {self._process.returncode}"
        log.error("engine_events_failed", exc_info=self._events.exception())
        await self._process.stop(STOP_S)
        return "the engine's events could not be read"

    async def _end_events(self) -> None:
        if self._events is not None:
            self._events.cancel()
            await asyncio.gather(self._events, return_exceptions=True)


def pause_before(num_failures: int) -> float:
    """Seconds before the next start: 1 after the first failure in a row, then twice the last, up to a limit."""
    return min(2.0 ** (num_failures - 1), LONGEST_PAUSE_S)
