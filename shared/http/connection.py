"""One HTTP/1.1 connection to a server, client side: write a request, read the answer as it arrives.

Made and kept by `shared.http.client` only. Carries one exchange at a time and knows nothing of pools, time-outs or the project's
errors. Parsing is llhttp's (`httptools`, which uvicorn brings); why this is not httpx: docs/adr/0010-gateway-http-client.md.
"""

import asyncio
from typing import NamedTuple

import httptools

_MAX_BUFFERED_BYTES = 256 * 1024
_JOIN_BELOW_BYTES = 64 * 1024

Header = tuple[bytes, bytes]


class ConnectionBrokenError(Exception):
    """The server closed the connection, or spoke no HTTP, before its answer was complete."""


class ResponseHead(NamedTuple):
    """Status and headers; the names in lower case."""

    status: int
    headers: list[Header]


class Connection(asyncio.Protocol):
    """The event loop calls the four methods of `asyncio.Protocol`; all others are for the client."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._is_open = False
        self._is_paused = False
        self._answer = _Answer()

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent: open, the last answer complete, the last request sent completely."""
        if self._transport is None or not (self._is_open and self._answer.is_complete and self._answer.keeps_alive):
            return False
        return self._transport.get_write_buffer_size() == 0

    @property
    def has_received(self) -> bool:
        """Whether a byte of the answer has come."""
        return self._answer.has_received

    @property
    def can_read(self) -> bool:
        """Whether `read` would answer without waiting."""
        return bool(self._answer.chunks) or self._answer.is_complete

    @property
    def at_end(self) -> bool:
        """Whether the answer is complete and all of it was read."""
        return self._answer.is_complete and not self._answer.chunks

    def send(self, head: bytes, body: bytes) -> None:
        """Write one request, `head` with the blank line at its end; the connection is fresh or reusable.

        Raises:
            ConnectionBrokenError: it was closed in the meantime.
        """
        if self._transport is None or not self._is_open:
            raise ConnectionBrokenError("the connection is closed")
        self._answer = _Answer()
        self._answer.parser = httptools.HttpResponseParser(self._answer)
        if len(body) < _JOIN_BELOW_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def read_head(self) -> ResponseHead:
        """The answer's status and headers.

        Raises:
            ConnectionBrokenError: they did not come completely.
        """
        answer = self._answer
        while answer.head is None:
            await answer.wait()
        return answer.head

    async def read(self) -> bytes:
        """What has come of the body since the last call, at least one byte; empty at its end.

        Raises:
            ConnectionBrokenError: the body ends before its time.
        """
        answer = self._answer
        while not answer.chunks:
            if answer.is_complete:
                return b""
            await answer.wait()
        data = answer.take()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Close at once; an answer that is still coming is lost and the server learns that nobody waits for it."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream protocol always gets a Transport
        self._is_open = True

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer.parser is None or answer.is_complete:  # nobody asked: the connection is out of step
            self.close()
            return
        answer.has_received = True
        try:
            answer.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            answer.fail("what came is not HTTP")
            self.close()
            return
        if answer.num_buffered_bytes > _MAX_BUFFERED_BYTES and self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        answer.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        answer = self._answer
        if answer.ends_with_connection and exc is None:
            answer.is_complete = True
            answer.wake()
        elif not answer.is_complete:
            answer.fail("the server closed the connection")


class _Answer:
    """One answer as far as it has come; the `on_` methods are called by the parser, in this order."""

    def __init__(self) -> None:
        self.parser: httptools.HttpResponseParser | None = None
        self.head: ResponseHead | None = None
        self.chunks: list[bytes] = []
        self.num_buffered_bytes = 0
        self.has_received = False
        self.is_complete = False
        self.keeps_alive = False
        self.ends_with_connection = False
        self._headers: list[Header] = []
        self._failure: ConnectionBrokenError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # later ones are trailers, which are dropped
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.parser is None or self.is_complete:
            self.keeps_alive = False  # a second answer to one request: the connection is out of step
            return
        status = self.parser.get_status_code()
        if status < 200:  # informational; the answer itself follows
            self._headers = []
            return
        names = {name for name, _ in self._headers}
        self.ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self.keeps_alive = self.parser.should_keep_alive()
        self.head = ResponseHead(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.chunks.append(body)
            self.num_buffered_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.head is not None:
            self.is_complete = True

    def take(self) -> bytes:
        """All chunks that have come, as one."""
        data = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        self.chunks.clear()
        self.num_buffered_bytes = 0
        return data

    def fail(self, reason: str) -> None:
        """No more will come."""
        self._failure = ConnectionBrokenError(reason)
        self.wake()

    def wake(self) -> None:
        """Something has come."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Return when something has come; raise when nothing more will."""
        if self._failure is not None:
            raise self._failure
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
