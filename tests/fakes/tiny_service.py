"""The smallest service there can be on `shared.http`: one JSON path and one stream; tests run it in process and as a process.

`python -m tests.fakes.tiny_service --port N` serves it. `/stream` ends when a test in process sets `released`, `/stream-into-drain`
when the service drains.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Response
from pydantic import Field

from shared.contracts.wire import WireModel
from shared.errors import ServiceError
from shared.http.app import Readiness, json_response, make_app
from shared.http.body import json_body
from shared.http.lifecycle import Lifecycle
from shared.http.server import serve
from shared.http.sse import EventStream
from shared.observability.context import request_id_var
from shared.observability.logging import configure_logging
from shared.observability.metrics import Metrics
from shared.settings.base import ServiceSettings, load_settings, settings_config


class TinySettings(ServiceSettings):
    """Nothing of its own."""

    model_config = settings_config("tiny")
    port: int = Field(0, description="TCP port.")


class Echo(WireModel):
    """What `/echo` takes and answers."""

    text: str
    number: int | None = Field(None, ge=-(2**63), lt=2**63)
    ratio: float | None = None
    nested: list[Any] | None = None


class TinyService:
    """Its application and what tests look at."""

    def __init__(self, settings: TinySettings) -> None:
        self.lifecycle = Lifecycle()
        self.released = asyncio.Event()
        self.is_stream_closed = False
        self.error: Exception | None = None
        self.fails_to_start = False
        self.app = make_app(
            settings,
            self.lifecycle,
            Metrics("tiny"),
            readiness=lambda: Readiness(ready=True, parts={"tiny": "ready"}),
            lifespan=self._lifespan,
            routers=[self._router()],
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        if self.fails_to_start:
            raise RuntimeError("told to fail")
        yield

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b'{"n":0}'
            if self.error is not None:
                raise self.error
            await self.released.wait()
            yield b'{"n":1}'
        finally:
            self.is_stream_closed = True

    async def _chunks_into_drain(self) -> AsyncGenerator[bytes, None]:
        yield b'{"n":0}'
        while not self.lifecycle.is_draining:  # noqa: ASYNC110 - the lifecycle has no event to wait for
            await asyncio.sleep(0.01)
        yield b'{"n":1}'

    def _router(self) -> APIRouter:
        router = APIRouter()

        @router.post("/echo")
        async def echo(body: Annotated[Echo, Depends(json_body(Echo))]) -> Response:
            if isinstance(self.error, ServiceError):
                raise self.error
            return json_response(body)

        @router.post("/stream")
        async def stream() -> Response:
            return EventStream(self._chunks())

        @router.post("/stream-into-drain")
        async def stream_into_drain() -> Response:
            return EventStream(self._chunks_into_drain())

        @router.post("/request-id")
        async def request_id() -> Response:
            return Response(request_id_var.get())

        @router.post("/bug")
        async def bug() -> Response:
            raise RuntimeError("secret detail")

        @router.post("/fail")
        async def fail() -> Response:
            self.lifecycle.fail("told to")
            return Response()

        return router


def main() -> int:
    """Serve it as a process."""
    settings = load_settings(TinySettings, sys.argv[1:])
    configure_logging("tiny", settings.log_level, settings.log_format)
    service = TinyService(settings)
    return serve(service.app, settings, service.lifecycle)


if __name__ == "__main__":
    sys.exit(main())
