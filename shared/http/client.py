"""Calls other services over HTTP: pooled connections, time-outs, and every failure as a `ServiceError`.

Used by the gateway, and the only place that knows aiohttp, which carries it all; what aiohttp raises is translated here, by one
table. A caller can rely on this: after `UpstreamUnavailableError` the server has not started the request.
"""

import contextlib
import io
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError
from aiohttp.tracing import Trace
from yarl import URL

from shared.errors import DeadlineExceededError, ServiceError, UpstreamInvalidError, UpstreamUnavailableError

Header = tuple[bytes, bytes]

# The first row that fits. In the first two nothing was sent; after that the server may have started.
_FAILURES: dict[type[Exception], tuple[type[ServiceError], str]] = {
    aiohttp.ConnectionTimeoutError: (UpstreamUnavailableError, "did not accept a connection in time"),
    aiohttp.ClientConnectorError: (UpstreamUnavailableError, "refused the connection"),
    TimeoutError: (DeadlineExceededError, "did not answer in time"),
    OSError: (UpstreamInvalidError, "broke off"),
    aiohttp.ClientError: (UpstreamInvalidError, "broke off"),
    HttpProcessingError: (UpstreamInvalidError, "broke off"),
}
_ADDED_BY_AIOHTTP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_WRITTEN_AT_ONCE_BYTES = 2**20  # aiohttp warns of larger ones


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
    """An answer whose body is still coming; `close` must be called. Names of headers are in lower case."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: list[Header] = [(name.lower(), value) for name, value in response.raw_headers]
        self._response = response

    @property
    def at_end(self) -> bool:
        """Whether all of the body was read."""
        return self._response.content.at_eof()

    def header(self, name: bytes) -> str:
        """Value of the first header called `name` (lower case), or the empty string."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")

    async def read(self) -> bytes:
        """More of the body, exactly as it came; empty at its end.

        Raises:
            DeadlineExceededError: nothing came for `read_s`.
            UpstreamInvalidError: the body ended before its time.
        """
        content = self._response.content
        try:
            return await content.readany()
        except tuple(_FAILURES) as error:
            # aiohttp raises at once, before it hands out what came until then.
            if rest := content._read_nowait(-1):  # noqa: SLF001 - nothing public gives it
                return rest
            raise _translated(error) from error

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
        """Close the connection, which tells the server to stop, unless the answer is complete and it is back in the pool."""
        self._response.close()


class HttpClient:
    """Connections to any number of origins, as many as are asked for; an asynchronous context manager.

    Args:
        idle_s: connections idle for longer are not used again; must be less than the servers keep them (75 s for ours).
        drop_window_s: a disconnect within this time after sending counts as a drop, see `UpstreamDroppedError`.
    """

    def __init__(self, timeouts: Timeouts, *, idle_s: float = 60.0, drop_window_s: float = 1.0) -> None:
        self.timeouts = timeouts
        self._idle_s = idle_s
        self._drop_window_s = drop_window_s
        self._closing = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "HttpClient":
        self._pooled = await self._closing.enter_async_context(_session(keepalive_timeout=self._idle_s))
        self._fresh = await self._closing.enter_async_context(_session(force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def send(self, origin: Origin, request: OutgoingRequest, connect_s: float | None = None) -> IncomingResponse:
        """Send `request` and wait for the head of the answer.

        A server may close an idle connection at the very moment a request is written to it. So a request that is dropped is
        written once more, on a fresh connection. That is safe: only repeatable requests are, no byte of an answer had come, and the
        end came at once; a server that took the request and died at work breaks off later, and is not asked to die again.
        Requests that are not repeatable always get a fresh connection, so they never meet this. (A GET aiohttp itself repeats too.)

        Args:
            connect_s: instead of `timeouts.connect_s`.
        Raises:
            UpstreamUnavailableError: no connection; the request was not started.
            UpstreamDroppedError: dropped twice, or dropped and then not let in any more.
            UpstreamInvalidError: the answer is not HTTP or broke off.
            DeadlineExceededError: no answer within `timeouts.read_s`.
        """
        connect_s = self.timeouts.connect_s if connect_s is None else connect_s
        limits = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=self.timeouts.read_s)
        if not request.is_repeatable:
            return await self._exchange(self._fresh, origin, request, limits)
        try:
            return await self._exchange(self._pooled, origin, request, limits)
        except UpstreamDroppedError as dropped:
            try:
                return await self._exchange(self._fresh, origin, request, limits)
            except UpstreamUnavailableError:
                raise dropped from None  # not "unavailable": the first time it may have been started

    async def _exchange(
        self, session: aiohttp.ClientSession, origin: Origin, request: OutgoingRequest, limits: aiohttp.ClientTimeout
    ) -> IncomingResponse:
        body = request.body
        started_at = time.monotonic()
        try:
            response = await session.request(
                request.method,
                _url(origin, request.target),
                headers=[("Host", _host(origin)), *((_text(name), _text(value)) for name, value in request.headers)],
                data=io.BytesIO(body) if len(body) > _WRITTEN_AT_ONCE_BYTES else body or None,
                timeout=limits,
                allow_redirects=False,
                server_hostname=origin.name if origin.scheme == "https" else None,
            )
        except tuple(_FAILURES) as error:
            is_at_once = time.monotonic() - started_at < self._drop_window_s
            if request.is_repeatable and is_at_once and _is_disconnect(error):
                raise UpstreamDroppedError("closed the connection without an answer") from error
            raise _translated(error) from error
        if response.status < 200:
            response.close()
            raise UpstreamInvalidError("changed the protocol")
        return IncomingResponse(response)


class _Connector(aiohttp.TCPConnector):
    """Uses no connection on which something came that nobody asked for: aiohttp would take it for the next request's answer."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if connection.protocol is None or connection.protocol.should_close:
            connection.close()
            raise aiohttp.ServerDisconnectedError
        return connection


def _session(**connector: Any) -> aiohttp.ClientSession:
    """A session that adds nothing to a request, takes nothing from an answer, and reads nothing of the environment."""
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, **connector),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_ADDED_BY_AIOHTTP,
    )


def _url(origin: Origin, target: bytes) -> URL:
    path, _, query = _text(target).partition("?")
    return URL.build(
        scheme=origin.scheme, host=origin.address, port=origin.port, path=path, query_string=query, encoded=True
    )


def _host(origin: Origin) -> str:
    name = f"[{origin.name}]" if ":" in origin.name else origin.name
    return f"{name}:{origin.port}"


def _text(raw: bytes) -> str:
    """`raw` as aiohttp takes it, which writes UTF-8."""
    return raw.decode("utf-8", "replace")


def _is_disconnect(error: Exception) -> bool:
    """Whether the connection ended without a byte of an answer."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # else it is the part of a head that came
    return isinstance(error, OSError) and not isinstance(error, (TimeoutError, aiohttp.ClientConnectorError))


def _translated(error: Exception) -> ServiceError:
    kind, message = next(row for caught, row in _FAILURES.items() if isinstance(error, caught))
    return kind(message)
