"""Runs an application under uvicorn with this project's way of stopping: drain, then exit with code 0.

Called by each service's `__main__`. The first SIGTERM or SIGINT drains, a second one ends what still runs at once.
"""

from types import FrameType

import uvicorn
from fastapi import FastAPI

from shared.http.lifecycle import Lifecycle
from shared.observability.logging import get_logger
from shared.settings.base import ServiceSettings

log = get_logger(__name__)


def serve(app: FastAPI, settings: ServiceSettings, lifecycle: Lifecycle) -> int:
    """Serve until a signal or a failure; return the process's exit code."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here asks for the client's address
        timeout_keep_alive=75,  # longer than the idle time of the clients' pools, so they close first
        timeout_graceful_shutdown=1,  # requests have had their grace period by then
    )
    _Server(config, lifecycle, settings.shutdown_grace_s).run()
    if lifecycle.failure is not None:
        log.error("service_failed", reason=lifecycle.failure)
        return 1
    return 0


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, grace_s: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._grace_s = grace_s
        self._num_signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not passed on: uvicorn would raise the signal again at the end and the exit code would not be 0.
        self._num_signals += 1

    async def on_tick(self, counter: int) -> bool:
        if self._num_signals > 0 and not self._lifecycle.is_draining:
            log.info("draining", num_in_flight=self._lifecycle.num_in_flight, grace_s=self._grace_s)
            self._lifecycle.start_draining(self._grace_s)
        if self._num_signals > 1 and not self._lifecycle.has_expired:
            self._lifecycle.expire()
        if self._lifecycle.is_over() or self._lifecycle.failure is not None:
            self.should_exit = True
        return await super().on_tick(counter)
