"""A service as the gateway sees one: `/ready`, `/v1/models`, and answers that the test scripts. Plain ASGI, for `LiveServer`."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from shared.errors import NotReadyError
from shared.http.handlers import error_response


@dataclass
class Call:
    """One request that reached the fake, with what is needed to answer it."""

    path: str
    query: str
    method: str
    headers: dict[str, str]
    body: bytes
    receive: Any = field(repr=False)
    send: Any = field(repr=False)

    async def reply(
        self, content: bytes | dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """A complete answer, JSON unless `headers` say otherwise."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        await self.start(
            status, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        )
        await self.send({"type": "http.response.body", "body": body})

    async def start(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Only the head of an answer."""
        rows = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self.send({"type": "http.response.start", "status": status, "headers": rows})

    async def drop(self) -> None:
        """Close the connection without a byte of an answer, by way of uvicorn's transport since ASGI knows no such thing."""
        self.send.__self__.transport.abort()
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def chunk(self, data: bytes, *, is_last: bool = False) -> None:
        """A piece of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def start_events(self) -> None:
        """The head of an event stream."""
        await self.start(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})


Handler = Callable[[Call], Awaitable[None]]


async def echo(call: Call) -> None:
    """Answer with what came."""
    await call.reply({"path": call.path, "body": call.body.decode("utf-8", "replace")})


class FakeService:
    """Serves one task; `handler` answers what is forwarded. `state` is ready, starting or draining."""

    def __init__(self, task: str, *models: str, handler: Handler = echo) -> None:
        self.task = task
        self.models = list(models)
        self.handler = handler
        self.state = "ready"
        self.calls: list[Call] = []
        self.num_probes = 0
        self.model_keys: list[str | None] = []
        self.disconnected = threading.Event()
        self.release = threading.Event()

    async def wait_release(self) -> None:
        """Wait for the test to set `release`."""
        while not self.release.is_set():  # noqa: ASYNC110 - it is set by another thread
            await asyncio.sleep(0.002)

    async def wait_disconnect(self, call: Call) -> None:
        """Wait until the gateway hangs up, and note it."""
        while (await call.receive())["type"] != "http.disconnect":
            pass
        self.disconnected.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        call = Call(
            scope["path"], scope["query_string"].decode(), scope["method"], headers, await _body(receive), receive, send
        )
        if call.path == "/ready":
            self.num_probes += 1
            part = "draining" if self.state == "draining" else "starting"
            await call.reply(
                {"ready": self.state == "ready", "parts": {"x": part}}, 200 if self.state == "ready" else 503
            )
        elif call.path == "/v1/models":
            self.model_keys.append(headers.get("authorization"))
            await call.reply({"object": "list", "data": [self._entry(name) for name in self.models]})
        elif self.state != "ready":
            self.calls.append(call)
            await error_response(NotReadyError("not now", retry_after_s=1))(scope, receive, send)
        else:
            self.calls.append(call)
            await self.handler(call)

    def _entry(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": 1,
            "owned_by": "trivium",
            "task": self.task,
            "max_model_len": 64,
            "a_field_of_the_future": 1,
        }


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
