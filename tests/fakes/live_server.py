"""An ASGI application behind a real socket, in a thread of the test process, so that clients and time-outs are the real ones.

It can be stopped and started again on its port, which is what a restarted service looks like.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import uvicorn


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(is_true: Callable[[], Any], what: str, timeout_s: float = 15.0) -> None:
    """Poll `is_true`; fail the test when it stays false."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {timeout_s} s: {what}")
        time.sleep(0.005)


class _Server(uvicorn.Server):
    loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)


class LiveServer:
    """Serves `app` from `start` to `stop`, or as a context manager."""

    def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0) -> None:
        self._app = app
        self._host = host
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.port = port

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://{self._host}:{self.port}"

    def start(self) -> Self:
        """Listen; returns when connections are accepted."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._host, self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app, log_config=None, access_log=False, timeout_keep_alive=75, timeout_graceful_shutdown=1
        )
        server = _Server(config)
        self._server = server
        self._thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        self._thread.start()
        wait_until(lambda: server.started, "server started")
        return self

    def call(self, function: Callable[[], Any]) -> None:
        """Run `function` on the server's event loop."""
        assert self._server is not None
        self._server.loop.call_soon_threadsafe(function)

    def ask_to_stop(self) -> None:
        """Begin what `stop` waits for."""
        if self._server is not None:
            self._server.should_exit = True

    def stop(self) -> None:
        """Close all connections and the port."""
        self.ask_to_stop()
        if self._server is not None and self._thread is not None:
            self._thread.join(10)
            assert not self._thread.is_alive(), "the server did not stop"
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
