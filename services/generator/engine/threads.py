"""The engine on a thread of the caller's own process, and the event loop that talks to it on another.

Started by `services.generator.llm`; the service itself runs its engine in a process, see `supervisor`. Knows nothing of prompts.
"""

import asyncio
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from services.generator.engine.handle import EngineHandle, EngineState
from services.generator.settings import GeneratorSettings
from shared.errors import EngineDeadError
from shared.settings.errors import StartError
from shared.settings.threads import set_thread_environment

Result = TypeVar("Result")


class EngineThreads:
    """The event loop and the engine loop; the engine has started when this is made."""

    def __init__(self, settings: GeneratorSettings, handle: EngineHandle) -> None:
        self._settings = settings
        self._handle = handle
        self._sockets = tempfile.TemporaryDirectory(prefix="trivium-")
        self._address = f"ipc://{Path(self._sockets.name) / 'engine.sock'}"
        self._loop = asyncio.new_event_loop()
        self._engine_ended = asyncio.Event()
        self._error: BaseException | None = None
        self._closing = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._loop.run_forever, name="llm-requests", daemon=True),
            threading.Thread(target=self._run_engine, name="llm-engine", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.run(self._connect())
        if self._handle.state is not EngineState.READY:
            self.stop()
            raise StartError("the engine did not start") if self._error is None else self._error

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` on the event loop and wait for its result; a wait that is interrupted gives the work up.

        Raises:
            EngineDeadError: the threads were stopped.
        """
        with self._closing:  # what is handed over before the loop is told to stop still ends there
            if self._is_closed:
                work.close()
                raise EngineDeadError("This LLM is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End both threads, and before them what other threads wait for."""
        with self._closing:
            self._is_closed = True
            disconnected = asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop)
        disconnected.result()
        self._threads[1].join()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()
        self._sockets.cleanup()

    async def _connect(self) -> None:
        self._events = asyncio.create_task(self._handle.run(self._address), name="llm-events")
        ends = [asyncio.create_task(event.wait()) for event in (self._handle.is_ready, self._engine_ended)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    async def _disconnect(self) -> None:
        self._handle.shutdown()
        await self._engine_ended.wait()
        self._events.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}  # each ends by itself now that there is no engine
        await asyncio.gather(*others, return_exceptions=True)

    def _run_engine(self) -> None:
        """Thread of the engine; what ends it early is raised to whoever waits."""
        num_threads = set_thread_environment(self._settings.num_threads)
        from services.generator.engine.build import build_engine  # loads torch, which reads that environment

        try:
            build_engine(self._settings, num_threads, address=self._address).run()
        except Exception as error:  # noqa: BLE001 - the top of a thread: its waiters are told
            self._error = error
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._engine_ended.set()
        self._handle.lose_engine(EngineState.DEAD)
