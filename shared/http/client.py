"""Calls other services over HTTP: pooled connections, time-outs, and every failure as a `ServiceError`.

Used by the gateway. What can go wrong below (sockets, TLS, parser) is translated here, by one table, and nowhere else.
A caller can rely on this: after `UpstreamUnavailableError` the server has not started the request.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.errors import DeadlineExceededError, ServiceError, UpstreamInvalidError, UpstreamUnavailableError
from shared.http.connection import Connection, ConnectionBrokenError, Header, ResponseHead

# While connecting nothing was sent; while reading the server may have started. TimeoutError is an OSError: it comes first.
_CONNECTING: dict[type[Exception], tuple[type[ServiceError], str]] = {
    TimeoutError: (UpstreamUnavailableError, "did not accept a connection in time"),
    OSError: (UpstreamUnavailableError, "refused the connection"),
    ConnectionBrokenError: (UpstreamUnavailableError, "closed the connection before the request"),
}
_READING: dict[type[Exception], tuple[type[ServiceError], str]] = {
    TimeoutError: (DeadlineExceededError, "did not answer in time"),
    OSError: (UpstreamInvalidError, "broke off"),
    ConnectionBrokenError: (UpstreamInvalidError, "broke off"),
}


class UpstreamDroppedError(UpstreamInvalidError):
    """The server closed the connection as soon as a repeatable request was on it, without a byte of an answer.

    Most likely it was closing the connection anyway (idle for too long, or about to exit); it may have died of the request.
    """


class Timeouts(NamedTuple):
    """How long each part of a call may take; a limit on the whole is the caller's `asyncio.timeout`.

    `read_s` bounds the wait for the first byte of the answer, and then each wait for more of it.
    """

    connect_s: float
    read_s: float


class Origin(NamedTuple):
    """Where to connect: `address` is what the socket gets, `name` and `port` are what the Host header (and TLS) says."""

    scheme: str
    name: str
    port: int
    address: str


class OutgoingRequest(NamedTuple):
    """One request, its body complete; `is_repeatable` says that doing it twice does no more than doing it once."""

    method: str
    target: bytes
    headers: Sequence[Header]
    body: bytes = b""
    is_repeatable: bool = True


class IncomingResponse:
    """An answer whose body is still coming; `close` must be called and gives the connection back."""

    def __init__(self, client: "HttpClient", origin: Origin, connection: Connection, head: ResponseHead) -> None:
        self.status = head.status
        self.headers = head.headers
        self._client = client
        self._origin = origin
        self._connection: Connection | None = connection
        self._read_s = client.timeouts.read_s

    @property
    def at_end(self) -> bool:
        """Whether all of the body was read."""
        return self._connection is None or self._connection.at_end

    def header(self, name: bytes) -> str:
        """Value of the first header called `name` (lower case), or the empty string."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")

    async def read(self) -> bytes:
        """More of the body, exactly as it came; empty at its end.

        Raises:
            DeadlineExceededError: nothing came for `read_s`.
            UpstreamInvalidError: the body ended before its time.
        """
        if self._connection is None:
            return b""
        with _translated(_READING):
            if self._connection.can_read:
                return await self._connection.read()
            async with asyncio.timeout(self._read_s):
                return await self._connection.read()

    async def read_all(self, max_bytes: int) -> bytes:
        """The whole body.

        Raises:
            UpstreamInvalidError: it is larger than `max_bytes`, or it ended before its time.
        """
        pieces = bytearray()
        while piece := await self.read():
            pieces += piece
            if len(pieces) > max_bytes:
                raise UpstreamInvalidError(f"answered more than {max_bytes} bytes")
        return bytes(pieces)

    def close(self) -> None:
        """Give the connection back if the answer is complete, else close it, which tells the server to stop."""
        if self._connection is not None:
            self._client.put_back(self._origin, self._connection)
            self._connection = None


class HttpClient:
    """Connections to any number of origins; used on one event loop.

    Args:
        idle_s: connections idle for longer are not used again; must be less than the servers keep them (75 s for ours).
        drop_window_s: a disconnect within this time after sending counts as a drop, see `UpstreamDroppedError`.
    """

    def __init__(self, timeouts: Timeouts, *, idle_s: float = 60.0, drop_window_s: float = 1.0) -> None:
        self.timeouts = timeouts
        self._idle_s = idle_s
        self._drop_window_s = drop_window_s
        self._idle: dict[Origin, deque[tuple[Connection, float]]] = {}
        self._tls: ssl.SSLContext | None = None

    async def send(self, origin: Origin, request: OutgoingRequest, connect_s: float | None = None) -> IncomingResponse:
        """Send `request` and wait for the head of the answer.

        A server may close an idle connection at the very moment a request is written to it. So a request that is dropped on a used
        connection is written once more, on a fresh one. That is safe: only repeatable requests are, no byte of an answer had come,
        and the end came at once; a server that took the request and died at work breaks off later, and is not asked to die again.
        Requests that are not repeatable always get a fresh connection, so they never meet this.

        Args:
            connect_s: instead of `timeouts.connect_s`.
        Raises:
            UpstreamUnavailableError: no connection; the request was not started.
            UpstreamDroppedError: dropped, and again if it was written twice.
            UpstreamInvalidError: the answer is not HTTP or broke off.
            DeadlineExceededError: no answer within `timeouts.read_s`.
        """
        connect_s = self.timeouts.connect_s if connect_s is None else connect_s
        used = self._take_idle(origin) if request.is_repeatable else None
        if used is None:
            return await self._exchange(origin, await self._connect(origin, connect_s), request)
        try:
            return await self._exchange(origin, used, request)
        except UpstreamDroppedError as dropped:
            try:
                fresh = await self._connect(origin, connect_s)
            except UpstreamUnavailableError:
                raise dropped from None  # not "unavailable": the first time it may have been started
        return await self._exchange(origin, fresh, request)

    def put_back(self, origin: Origin, connection: Connection) -> None:
        """Called by `IncomingResponse.close`."""
        if not (connection.is_reusable and connection.at_end):
            connection.close()
            return
        now = asyncio.get_running_loop().time()
        idle = self._idle.setdefault(origin, deque())
        while idle and (idle[0][1] < now or not idle[0][0].is_reusable):
            idle.popleft()[0].close()
        idle.append((connection, now + self._idle_s))

    def forget(self, origin: Origin) -> None:
        """Close the idle connections to `origin`; running exchanges go on."""
        for connection, _ in self._idle.pop(origin, ()):
            connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        for origin in list(self._idle):
            self.forget(origin)

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        now = asyncio.get_running_loop().time()
        while idle:
            connection, expires_at = idle.pop()
            if connection.is_reusable and now < expires_at:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin, connect_s: float) -> Connection:
        tls = self._tls_context() if origin.scheme == "https" else None
        with _translated(_CONNECTING):
            async with asyncio.timeout(connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    Connection, origin.address, origin.port, ssl=tls, server_hostname=origin.name if tls else None
                )
        return connection

    async def _exchange(self, origin: Origin, connection: Connection, request: OutgoingRequest) -> IncomingResponse:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        try:
            with _translated(_READING):
                connection.send(_request_head(origin, request), request.body)
                async with asyncio.timeout(self.timeouts.read_s):
                    head = await connection.read_head()
        except BaseException as error:
            connection.close()
            is_dropped = not connection.has_received and loop.time() - sent_at < self._drop_window_s
            if isinstance(error, UpstreamInvalidError) and request.is_repeatable and is_dropped:
                raise UpstreamDroppedError("closed the connection without an answer") from error
            raise
        return IncomingResponse(self, origin, connection, head)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _request_head(origin: Origin, request: OutgoingRequest) -> bytes:
    name = f"[{origin.name}]" if ":" in origin.name else origin.name
    lines = [
        b"%s %s HTTP/1.1" % (request.method.encode(), request.target),
        b"host: %s:%d" % (name.encode(), origin.port),
    ]
    lines += [key + b": " + value for key, value in request.headers]
    if request.body or request.method != "GET":
        lines.append(b"content-length: %d" % len(request.body))
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise ValueError("a line break in a request line or header")
    return b"\r\n".join(lines) + b"\r\n\r\n"


@contextlib.contextmanager
def _translated(table: dict[type[Exception], tuple[type[ServiceError], str]]) -> Iterator[None]:
    try:
        yield
    except tuple(table) as error:
        found = next(row for kind, row in table.items() if isinstance(error, kind))
        raise found[0](found[1]) from error
