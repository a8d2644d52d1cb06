"""Runs an application on a real socket in a thread, so that real clients can be pointed at it.

Used by the tests of the embedder and the reranker. Waits until `/ready` is 200.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The address of `app`, served while the context lasts."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-server")
        thread.start()
        try:
            wait_until_ready(address)
            yield address
        finally:
            server.should_exit = True
            thread.join(30)


def wait_until_ready(address: str, timeout_s: float = 120) -> None:
    """Poll `/ready` until it is 200."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"{address} did not become ready")
