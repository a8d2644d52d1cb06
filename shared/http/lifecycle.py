"""Starting, serving, draining, stopped: the state of one service process and the requests inside it.

Written by `shared.http.server` (signals) and by the service (ready, failed); read by the middleware, by `/ready` and by streams.
Shutdown order: refuse new requests, let running ones finish for the grace period, end the rest with an error, stop.
"""

import asyncio
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.errors import NotReadyError
from shared.observability.logging import get_logger

log = get_logger(__name__)

SCOPE_KEY = "trivium.lifecycle"
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})


class Lifecycle:
    """What the process is doing and which request tasks it runs; used on the event loop only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadline: float | None = None
        self.has_expired = False
        self.failure: str | None = None
        self.illness: str | None = None

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._deadline is not None

    @property
    def num_in_flight(self) -> int:
        """Requests that have not been answered completely."""
        return len(self._tasks)

    def start_draining(self, grace_s: float) -> None:
        """Refuse new requests from now on; running ones have `grace_s` seconds."""
        if self._deadline is None:
            self._deadline = time.monotonic() + grace_s

    def fail(self, reason: str) -> None:
        """The service can never become ready (or never again): the process ends with an exit code of 1."""
        self.failure = reason

    def give_up(self, reason: str) -> None:
        """The service cannot serve again by itself: `/health` says so from now on, for whoever can replace the process."""
        log.error("service_gave_up", reason=reason)
        self.illness = reason

    def is_over(self) -> bool:
        """Whether a draining process may stop; ends what is left when the grace period is over."""
        if self._deadline is None or not self._tasks:
            return self._deadline is not None
        if not self.has_expired and time.monotonic() >= self._deadline:
            self.expire()
        return False

    def expire(self) -> None:
        """End every running request now; each answers its client with an error."""
        self.has_expired = True
        for task in self._tasks:
            task.cancel()

    def enter(self) -> asyncio.Task[None]:
        """Count the current task as a running request."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the middleware always runs in a task
        self._tasks.add(task)
        return task

    def leave(self, task: asyncio.Task[None]) -> None:
        """The request of `task` is answered."""
        self._tasks.discard(task)


def shutdown_error() -> NotReadyError:
    """What a client is told that is cut off, or turned away, by a shutdown."""
    return NotReadyError("The service is shutting down", retry_after_s=1)


class LifecycleMiddleware:
    """Turns requests away while draining and answers those that the end of the grace period cut off."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._lifecycle.is_draining:
            raise shutdown_error()
        scope[SCOPE_KEY] = self._lifecycle
        task = self._lifecycle.enter()
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._lifecycle.has_expired:
                raise
            task.uncancel()
            raise shutdown_error() from None
        finally:
            self._lifecycle.leave(task)
