"""Server-sent events: framing, the error path after the status is sent, and what a client's disconnect does.

Routes give it an iterator of JSON chunks. It alone knows that a stream ends with `[DONE]`, also after an error.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.errors import InternalError, ServiceError
from shared.http.lifecycle import SCOPE_KEY, Lifecycle, shutdown_error
from shared.http.status import error_json
from shared.observability.logging import get_logger

log = get_logger(__name__)


class Closable(Protocol):
    """Work that can be given up."""

    async def aclose(self) -> None:
        """End it, if it has not ended."""
        ...


class EventStream(Response):
    """Sends each chunk as one event; closes everything when the client is gone, which aborts the work behind it.

    Args:
        chunks: JSON documents as bytes, without framing.
        work: what runs behind `chunks`, closed in the end also where the first chunk was never asked for: closing an iterator
            that has not begun runs none of its code.
        headers: sent besides those of every stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        work: Closable | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._chunks = chunks
        self._work = work
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the iterator ends, the client leaves or the service's grace period is over."""
        sender = asyncio.create_task(self._send_all(send), name="sse-send")
        listener = asyncio.create_task(_disconnected(receive), name="sse-listen")
        try:
            await asyncio.wait({sender, listener}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            lifecycle: Lifecycle | None = scope.get(SCOPE_KEY)
            if lifecycle is None or not lifecycle.has_expired:
                raise
            if not sender.done():
                await _cancel(sender)
                await self._send_error(send, shutdown_error())
        finally:
            await _cancel(listener, sender)
            try:
                await self._chunks.aclose()
            finally:
                if self._work is not None:
                    await self._work.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                await _send_event(send, chunk)
        except ServiceError as error:
            await self._send_error(send, error)
        except Exception:
            log.exception("stream_failed")
            await self._send_error(send, InternalError("Internal error"))
        else:
            await _send_event(send, b"[DONE]", is_last=True)

    async def _send_error(self, send: Send, error: ServiceError) -> None:
        await send({"type": "http.response.body", "body": error_events(error), "more_body": False})


def error_events(error: ServiceError) -> bytes:
    """What ends a stream that cannot go on: an event with the error, and `[DONE]`."""
    return _event(error_json(error)) + _event(b"[DONE]")


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def _send_event(send: Send, data: bytes, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": _event(data), "more_body": not is_last})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """End `tasks`, whatever they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
