"""The HTTP client against servers that answer exactly the bytes a test wants, and some that behave badly."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from shared.errors import DeadlineExceededError, UpstreamInvalidError, UpstreamUnavailableError
from shared.http.client import (
    _FAILURES,
    HttpClient,
    IncomingResponse,
    Origin,
    OutgoingRequest,
    Timeouts,
    UpstreamDroppedError,
)
from tests.fakes.live_server import free_port

POST = OutgoingRequest("POST", b"/v1/x?a=1", [(b"content-type", b"application/json")], b'{"a":1}')
ADMIN = POST._replace(is_repeatable=False)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class RawServer:
    """Answers the n-th request of each connection with what `script(connection, n)` says; None closes the connection."""

    def __init__(self, script: Callable[[int, int], bytes | None]) -> None:
        self._script = script
        self.num_connections = 0
        self.requests: list[bytes] = []
        self.closed = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "RawServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.origin = Origin("http", "service.test", self._server.sockets[0].getsockname()[1], "127.0.0.1")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self.writers:
            writer.close()

    def refuse(self) -> None:
        """Accept no more connections; those that are open stay."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, n = self.num_connections, 0
        self.num_connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                rows = head.lower().split(b"\r\n")
                length = next((int(row[15:]) for row in rows if row.startswith(b"content-length:")), 0)
                self.requests.append(head + await reader.readexactly(length))
                answer = self._script(connection, n)
                n += 1
                if answer is None:
                    break
                writer.write(answer)
                if answer.endswith(b"hang up"):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.closed.set()


def run(
    script: Callable[[int, int], bytes | None], test: Callable[[HttpClient, RawServer], Awaitable[Any]], **client: Any
) -> None:
    async def main() -> None:
        timeouts = Timeouts(connect_s=client.pop("connect_s", 5), read_s=client.pop("read_s", 5))
        async with RawServer(script) as server, HttpClient(timeouts, **client) as http, asyncio.timeout(20):
            await test(http, server)

    asyncio.run(main())


async def fetch(http: HttpClient, server: RawServer, request: OutgoingRequest = POST) -> tuple[int, bytes]:
    response = await http.send(server.origin, request)
    try:
        return response.status, await response.read_all(10**7)
    finally:
        response.close()


def test_request_on_the_wire_and_connection_reuse() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        for _ in range(3):
            assert await fetch(http, server) == (200, b"hi")
        expected = (
            f"POST /v1/x?a=1 HTTP/1.1\r\nHost: service.test:{server.origin.port}\r\n"
            'content-type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
        )
        assert server.requests == [expected.encode()] * 3
        assert server.num_connections == 1
        await fetch(http, server, OutgoingRequest("GET", b"/", []))
        assert server.requests[-1] == f"GET / HTTP/1.1\r\nHost: service.test:{server.origin.port}\r\n\r\n".encode()

    run(lambda _connection, _n: OK, test)


def test_bytes_pass_unchanged() -> None:
    body = gzip.compress(b"hi")
    head = b"HTTP/1.1 302 Found\r\nLocation: /y\r\nSet-Cookie: a=b\r\nContent-Encoding: gzip\r\nX-A: \xc3\xbc\xff\r\n"
    request = OutgoingRequest("GET", "/%65?a=ü%20+&&b=/#c".encode(), [(b"x-trivium-a", "ü".encode()), (b"x-b", b"")])

    async def test(http: HttpClient, server: RawServer) -> None:
        for _ in range(2):
            response = await http.send(server.origin, request)
            assert (response.status, await response.read_all(100)) == (302, body)
            assert response.headers[:4] == [
                (b"location", b"/y"),
                (b"set-cookie", b"a=b"),
                (b"content-encoding", b"gzip"),
                (b"x-a", b"\xc3\xbc\xff"),
            ]
            response.close()
        lines = [b"GET " + request.target + b" HTTP/1.1", f"Host: service.test:{server.origin.port}".encode()]
        assert server.requests == [b"\r\n".join([*lines, "x-trivium-a: ü".encode(), b"x-b: ", b"", b""])] * 2

    run(lambda _connection, _n: head + b"content-length: %d\r\n\r\n" % len(body) + body, test)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")

    async def test(http: HttpClient, server: RawServer) -> None:
        assert await fetch(http, server) == (200, b"hi")

    run(lambda _connection, _n: OK, test)


BODIES = {
    "sized": (OK, b"hi", True),
    "empty": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n3\r\n yo\r\n0\r\n\r\n",
        b"hi yo",
        True,
    ),
    "trailers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-a: 1\r\ncontent-type: b\r\n\r\n",
        b"hi",
        True,
    ),
    "informational first": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nx: y\r\n\r\n" + OK, b"hi", True),
    "close asked for": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi", b"hi", False),
    "ends with the connection": (b"HTTP/1.1 200 OK\r\n\r\nhi, and I hang up", b"hi, and I hang up", False),
    "two answers to one request": (OK + OK, b"hi", False),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str) -> None:
    answer, body, is_reused = BODIES[name]

    async def test(http: HttpClient, server: RawServer) -> None:
        assert (await fetch(http, server))[1] == body
        assert (await fetch(http, server))[1] == body
        assert server.num_connections == (1 if is_reused else 2)

    run(lambda _connection, _n: answer, test)


BROKEN = {
    "nothing": None,
    "garbage": b"SSH-2.0-OpenSSH\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le hang up",
    "upgrade": b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
}
BROKEN_BODIES = {
    "half a sized body": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhang up",
    "half a chunked body": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\nhang up",
    "bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\nhang up",
}


@pytest.mark.parametrize("name", [*BROKEN, *BROKEN_BODIES])
def test_broken_answers(name: str) -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        if name in BROKEN:
            with pytest.raises(UpstreamInvalidError):
                await http.send(server.origin, POST)
            assert server.num_connections == (2 if name == "nothing" else 1), "after a byte nothing is sent again"
            return
        with pytest.raises(UpstreamInvalidError):
            await fetch(http, server)  # by a bad chunk that comes with the head the head is lost too
        assert server.num_connections == 1

    run(lambda _connection, _n: (BROKEN | BROKEN_BODIES)[name], test)


def test_what_came_before_the_break_is_read_first() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        response = await http.send(server.origin, POST)
        assert await response.read() == b"hang up"
        with pytest.raises(UpstreamInvalidError):
            await response.read()
        response.close()

    run(lambda _connection, _n: BROKEN_BODIES["half a chunked body"], test)


def test_stale_connection_is_replaced_once() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        for _ in range(3):
            assert await fetch(http, server) == (200, b"hi")
        assert server.num_connections == 3

    run(lambda _connection, n: OK if n == 0 else None, test)


def test_a_request_dropped_twice_is_given_up() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        await fetch(http, server)
        with pytest.raises(UpstreamDroppedError):
            await fetch(http, server)
        assert server.num_connections == 2

    run(lambda connection, n: OK if (connection, n) == (0, 0) else None, test)


def test_a_request_that_may_have_been_started_is_never_called_unavailable() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        await fetch(http, server)
        server.refuse()
        with pytest.raises(UpstreamDroppedError):
            await fetch(http, server)

    run(lambda _connection, n: OK if n == 0 else None, test)


def test_what_is_not_repeatable_is_never_called_dropped() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        with pytest.raises(UpstreamInvalidError) as raised:
            await fetch(http, server, ADMIN)
        assert not isinstance(raised.value, UpstreamDroppedError)
        assert server.num_connections == 1

    run(lambda _connection, _n: None, test)


def test_disconnect_after_the_window_is_not_repeated() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        await fetch(http, server)
        with pytest.raises(UpstreamInvalidError):
            await fetch(http, server)
        assert server.num_connections == 1

    run(lambda _connection, n: OK if n == 0 else None, test, drop_window_s=0.0)


def test_disconnect_after_a_byte_is_not_repeated() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        await fetch(http, server)
        with pytest.raises(UpstreamInvalidError):
            await fetch(http, server)
        assert server.num_connections == 1

    run(lambda _connection, n: OK if n == 0 else b"HTTP/1.1 200 hang up", test)


def test_what_is_not_repeatable_never_meets_a_used_connection() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        await fetch(http, server)
        assert await fetch(http, server, ADMIN) == (200, b"hi")
        assert server.num_connections == 2

    run(lambda _connection, _n: OK, test)


def test_idle_connection_closed_by_the_server_is_noticed() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        await fetch(http, server, ADMIN)
        server.writers[0].close()
        await server.closed.wait()
        await asyncio.sleep(0.01)  # lets the end of the connection arrive; if it does not, the retry covers it
        assert await fetch(http, server) == (200, b"hi")
        assert server.num_connections == 2

    run(lambda _connection, _n: OK, test)


def test_expired_connections_are_not_used() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        await fetch(http, server)
        await asyncio.sleep(0.02)
        await fetch(http, server)
        assert server.num_connections == 2

    run(lambda _connection, _n: OK, test, idle_s=0.01)


@pytest.mark.parametrize("outgoing", [POST, OutgoingRequest("GET", b"/", [])], ids=["POST", "GET"])
def test_bytes_nobody_asked_for_are_no_answer(outgoing: OutgoingRequest) -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        await fetch(http, server)
        server.writers[0].write(OK.replace(b"hi", b"no"))
        await asyncio.sleep(0.05)  # lets it arrive
        assert await fetch(http, server, outgoing) == (200, b"hi")
        assert server.num_connections == 2
        await server.closed.wait()

    run(lambda _connection, _n: OK, test)


def test_closing_an_unfinished_answer_closes_the_connection() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        response = await http.send(server.origin, POST)
        assert await response.read() == b"hi"
        response.close()
        response.close()
        await server.closed.wait()

    run(lambda _connection, _n: b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n", test)


def test_cancelled_send_closes_the_connection() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await http.send(server.origin, POST)
        await server.closed.wait()

    run(lambda _connection, _n: b"", test)


def test_time_outs() -> None:
    async def head(http: HttpClient, server: RawServer) -> None:
        with pytest.raises(DeadlineExceededError):
            await http.send(server.origin, POST)
        await server.closed.wait()

    async def body(http: HttpClient, server: RawServer) -> None:
        response = await http.send(server.origin, POST)
        with pytest.raises(DeadlineExceededError):
            await response.read_all(100)
        response.close()

    run(lambda _connection, _n: b"", head, read_s=0.05)
    run(lambda _connection, _n: OK[:-1], body, read_s=0.05)


def test_no_connection_means_nothing_was_sent() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        with pytest.raises(UpstreamUnavailableError):
            await http.send(server.origin._replace(port=free_port()), POST)

    run(lambda _connection, _n: OK, test)


def test_connect_time_out() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        loop = asyncio.get_running_loop()

        async def never(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        loop.sock_connect = never  # type: ignore[method-assign]  # stands for an address that does not answer
        with pytest.raises(UpstreamUnavailableError):
            await http.send(server.origin, POST, connect_s=0.01)

    run(lambda _connection, _n: OK, test)


def test_large_bodies_both_ways_with_back_pressure() -> None:
    size = 8 * 2**20

    async def test(http: HttpClient, server: RawServer) -> None:
        response: IncomingResponse = await http.send(server.origin, POST._replace(body=b"x" * size))
        await asyncio.sleep(0.05)  # the answer piles up: reading must pause, then go on
        assert await response.read_all(size) == b"y" * size
        response.close()
        assert len(server.requests[0]) > size

    run(lambda _connection, _n: b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"y" * size, test)


def test_read_all_is_bounded() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        response = await http.send(server.origin, POST)
        with pytest.raises(UpstreamInvalidError):
            await response.read_all(1)
        response.close()

    run(lambda _connection, _n: OK, test)


def test_line_breaks_cannot_be_smuggled() -> None:
    async def test(http: HttpClient, server: RawServer) -> None:
        for bad in (POST._replace(target=b"/\r\nx: y"), POST._replace(headers=[(b"a", b"b\nc: d")])):
            with pytest.raises(ValueError, match="control character"):
                await http.send(server.origin, bad)

    run(lambda _connection, _n: OK, test)


def test_every_error_of_aiohttp_is_translated() -> None:
    kinds = [kind for kind in vars(aiohttp.client_exceptions).values() if isinstance(kind, type)]
    errors = {kind for kind in kinds if issubclass(kind, Exception)}
    assert {kind for kind in errors if not issubclass(kind, tuple(_FAILURES))} == {aiohttp.WSMessageTypeError}
