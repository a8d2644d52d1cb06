"""Streams through the gateway: the same bytes as they come, ended properly whoever leaves first."""

import json
import socket

import httpx
import pytest

from tests.fakes.fake_service import Call
from tests.gateway.conftest import Suite

EVENTS = [
    b'data: {"a": "\xc3\xbc"}\n\n',
    b": ping\n\n",
    b'data: {"cut in',
    b' half": 1}\n\nda',
    b"ta: 3\r\n\r\n",
    b"event: x\ndata: 4\n\n",
    b"data: [DONE]\n\n",
]


def test_bytes_and_chunks_are_the_same(suite: Suite) -> None:
    async def answer(call: Call) -> None:
        await call.start_events()
        for event in EVENTS:
            await call.chunk(event)
        await call.chunk(b"", is_last=True)

    suite.generator.handler = answer
    suite.ready()
    response = suite.client.post("/v1/completions", json={})
    assert response.content == b"".join(EVENTS)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"


def test_each_chunk_comes_before_the_next_is_made(suite: Suite) -> None:
    async def answer(call: Call) -> None:
        await call.start_events()
        for event in EVENTS:
            suite.generator.release.clear()
            await call.chunk(event)
            await suite.generator.wait_release()
        await call.chunk(b"", is_last=True)

    suite.generator.handler = answer
    suite.ready()
    with suite.client.stream("POST", "/v1/completions", json={}) as response:
        chunks = response.iter_raw()
        for event in EVENTS:
            assert next(chunks) == event
            suite.generator.release.set()
        assert list(chunks) == []


def test_a_large_body_that_is_no_stream_is_the_same(suite: Suite) -> None:
    body = bytes(range(256)) * 20_000

    async def answer(call: Call) -> None:
        await call.reply(body, headers={"content-type": "application/octet-stream"})

    suite.embedder.handler = answer
    suite.ready()
    response = suite.client.post("/v1/embeddings", content=b"x" * 2**20)
    assert response.content == body
    assert response.headers["content-length"] == str(len(body))
    assert "transfer-encoding" not in response.headers


def test_client_that_leaves_a_stream_ends_it_at_the_service(suite: Suite) -> None:
    async def answer(call: Call) -> None:
        await call.start_events()
        await call.chunk(EVENTS[0])
        await suite.generator.wait_disconnect(call)

    suite.generator.handler = answer
    suite.ready()
    with suite.client.stream("POST", "/v1/completions", json={}) as response:
        assert next(response.iter_raw()) == EVENTS[0]
    assert suite.generator.disconnected.wait(10)
    suite.wait(lambda: suite.metric('trivium_gateway_requests_in_flight{service="generator"}') == 0, "let go")


def test_client_that_leaves_before_the_answer_ends_it_at_the_service(suite: Suite) -> None:
    async def answer(call: Call) -> None:
        await suite.generator.wait_disconnect(call)

    suite.generator.handler = answer
    suite.ready()
    url = httpx.URL(suite.url)
    with socket.create_connection((url.host, url.port)) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        suite.wait(lambda: suite.generator.calls, "the request has reached the service")
    assert suite.generator.disconnected.wait(10)
    suite.wait(
        lambda: suite.metric('trivium_gateway_http_requests_total{code="499",path="/v1/completions"}') == 1, "counted"
    )


@pytest.mark.parametrize(
    ("sent", "between"),
    [
        (b'data: {"a": 1}\n\n', b""),
        (b'data: {"a": 1}\n\ndata: {"ha', b"\n\n"),
    ],
)
def test_event_stream_that_breaks_off_ends_with_an_error(suite: Suite, sent: bytes, between: bytes) -> None:
    async def answer(call: Call) -> None:
        await call.start_events()
        await call.chunk(sent)  # and return: the server closes the connection in the middle

    suite.generator.handler = answer
    suite.ready()
    content = suite.client.post("/v1/completions", json={}).content
    assert content.startswith(sent + between + b'data: {"error"')
    event, done, rest = content[len(sent + between) :].split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "upstream_invalid"
    assert (done, rest) == (b"data: [DONE]", b"")


def test_event_stream_that_breaks_off_after_done_is_whole(suite: Suite) -> None:
    async def answer(call: Call) -> None:
        await call.start_events()
        await call.chunk(EVENTS[0] + b"data: [DONE]\n\n")

    suite.generator.handler = answer
    suite.ready()
    assert suite.client.post("/v1/completions", json={}).content == EVENTS[0] + b"data: [DONE]\n\n"


@pytest.mark.parametrize("headers", [{}, {"content-length": "100"}])
def test_body_that_breaks_off_breaks_the_connection(suite: Suite, headers: dict[str, str]) -> None:
    async def answer(call: Call) -> None:
        await call.start(200, {"content-type": "application/json", **headers})
        await call.chunk(b'{"half":')

    suite.embedder.handler = answer
    suite.ready()
    with pytest.raises(httpx.RemoteProtocolError):
        suite.client.post("/v1/embeddings", json={})
    assert suite.client.get("/health").status_code == 200


def test_total_time_out_ends_a_stream_with_an_error(suite: Suite) -> None:
    async def answer(call: Call) -> None:
        await call.start_events()
        await call.chunk(EVENTS[0])
        await suite.generator.wait_disconnect(call)

    suite.generator.handler = answer
    suite.ready(total_timeout_s=0.3)
    content = suite.client.post("/v1/completions", json={}).content
    assert content.startswith(EVENTS[0] + b'data: {"error"')
    assert b'"deadline_exceeded"' in content
    assert content.endswith(b"data: [DONE]\n\n")
    assert suite.generator.disconnected.wait(10)


def test_end_of_the_grace_period_ends_a_stream_with_an_error(suite: Suite) -> None:
    async def answer(call: Call) -> None:
        await call.start_events()
        await call.chunk(EVENTS[0])
        await suite.generator.wait_disconnect(call)

    suite.generator.handler = answer
    suite.ready()
    with suite.client.stream("POST", "/v1/completions", json={}) as response:
        chunks = response.iter_raw()
        assert next(chunks) == EVENTS[0]
        suite.expire()
        rest = b"".join(chunks)
    assert json.loads(rest.split(b"\n\n")[0].removeprefix(b"data: "))["error"]["code"] == "not_ready"
    assert rest.endswith(b"data: [DONE]\n\n")
    assert suite.generator.disconnected.wait(10)
