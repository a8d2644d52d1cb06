"""A model service's application on a real socket, once its model is loaded.

Used by the tests of the embedder and the reranker.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from fastapi import FastAPI

from tests.fakes.live_server import LiveServer, wait_until


@contextmanager
def ready_service(app: FastAPI) -> Iterator[str]:
    """The address of `app`, served while the context lasts."""
    with LiveServer(app) as server:
        wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 200, "the model loaded", timeout_s=120)
        yield server.url
