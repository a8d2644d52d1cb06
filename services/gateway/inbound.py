"""A client's request as the gateway keeps it while it looks for an answer; made by the routes, read by everything below.

The body is bytes and stays so: only routing looks into it, and only as far as it must.
"""

import time
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from services.gateway.paths import SERVICE_OF_PATH, Service
from shared.http.client import Header


@dataclass(frozen=True)
class Inbound:
    """One request, complete; `headers` as they came, names in lower case."""

    service: Service
    method: str
    path: str
    target: bytes
    headers: list[Header]
    body: bytes
    arrived_at: float = field(default_factory=time.perf_counter)

    @classmethod
    async def read(cls, scope: Scope, receive: Receive) -> "Inbound":
        """Take the request from the server; its size is limited by the middleware.

        Raises:
            ClientDisconnect: the client left before its body was here.
        """
        query = scope["query_string"]
        target = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        body = await _read_body(receive)
        return cls(SERVICE_OF_PATH[scope["path"]], method, scope["path"], target, scope["headers"], body)


async def _read_body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
