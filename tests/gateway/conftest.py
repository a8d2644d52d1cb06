"""A gateway on a real port in front of fake services on real ports."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from services.gateway.app import build_app
from services.gateway.settings import GatewaySettings
from shared.http.lifecycle import Lifecycle
from shared.observability.logging import configure_logging
from tests.fakes.fake_service import FakeService
from tests.fakes.live_server import LiveServer, free_port, wait_until

FAST: dict[str, Any] = {"probe_interval_s": 0.05, "probe_timeout_s": 2.0, "resolve_interval_s": 0.05}


@pytest.fixture(autouse=True, scope="session")
def _logs() -> None:
    configure_logging("gateway", "info", "json")


class Suite:
    """One gateway, its services, and a client; services that a test does not give are ready and echo."""

    def __init__(self, stack: list[LiveServer]) -> None:
        self._stack = stack
        self.generator = FakeService("generate", "gen")
        self.embedder = FakeService("embed", "emb")
        self.reranker = FakeService("rerank", "rer")
        self.servers: dict[FakeService, LiveServer] = {}
        self.settings: dict[str, Any] = dict(FAST)
        self.resolve: Any = None
        self.lifecycle = Lifecycle()
        self.app: FastAPI
        self.client: httpx.Client

    def serve(self, service: FakeService, host: str = "127.0.0.1", port: int = 0) -> LiveServer:
        """Put a fake behind a port."""
        server = LiveServer(service, host, port).start()
        self._stack.append(server)
        self.servers[service] = server
        return server

    def start(self, **settings: Any) -> "Suite":
        """Start what is not yet started, and the gateway."""
        merged = self.settings | settings
        for name in ("generator", "embedder", "reranker"):
            if f"{name}_url" not in merged:
                merged[f"{name}_url"] = [self.serve(getattr(self, name)).url]
        own = {"resolve": self.resolve} if self.resolve else {}
        self.app = build_app(GatewaySettings(**merged), self.lifecycle, **own)
        self.gateway = LiveServer(self.app).start()
        self._stack.append(self.gateway)
        self.url = self.gateway.url
        self.client = httpx.Client(base_url=self.url, timeout=20)
        return self

    def expire(self) -> None:
        """What the end of the grace period does."""
        self.gateway.call(lambda: self.lifecycle.start_draining(0))
        self.gateway.call(self.lifecycle.expire)

    def ready(self, **settings: Any) -> "Suite":
        """The same, and wait until everything is ready and the models are known."""
        self.start(**settings)
        self.wait(lambda: self.client.get("/ready").status_code == 200, "ready")
        return self

    def wait(self, is_true: Callable[[], Any], what: str) -> None:
        """Poll until it is true."""
        wait_until(is_true, what)

    def parts(self) -> dict[str, str]:
        """What `/ready` says of each service."""
        parts: dict[str, str] = self.client.get("/ready").json()["parts"]
        return parts

    def metric(self, line: str) -> float:
        """Value of the sample that begins with `line`, 0 if there is none."""
        rows = self.client.get("/metrics").text.splitlines()
        return next((float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(line)), 0.0)


@pytest.fixture
def suite() -> Iterator[Suite]:
    stack: list[LiveServer] = []
    made = Suite(stack)
    yield made
    if hasattr(made, "client"):
        made.client.close()
    for server in stack:
        server.ask_to_stop()
    for server in stack:
        server.stop()


@pytest.fixture
def dead_url() -> str:
    """A URL that nobody answers at."""
    return f"http://127.0.0.1:{free_port()}"
