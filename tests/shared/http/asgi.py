"""Calls an ASGI application inside the test: one request by httpx's transport, or by hand where the client hangs up."""

import asyncio
from typing import Any

import httpx


def call(app: Any, method: str, path: str, **arguments: Any) -> httpx.Response:
    """One request and its answer."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://tiny") as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(run())


def http_scope(path: str, headers: list[tuple[bytes, bytes]] | None = None) -> dict[str, Any]:
    """The scope of a POST to `path`."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers or [],
        "server": ("tiny", 80),
        "client": ("test", 1),
    }


class Wire:
    """`receive` and `send` of one exchange; the test decides when the client hangs up."""

    def __init__(self, body: bytes = b"") -> None:
        self.sent: list[dict[str, Any]] = []
        self.has_sent = asyncio.Event()
        self.hang_up = asyncio.Event()
        self._body: bytes | None = body

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.hang_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.has_sent.set()

    @property
    def body(self) -> bytes:
        """All that was sent of the answer's body."""
        return b"".join(message.get("body", b"") for message in self.sent)
