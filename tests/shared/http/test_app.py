"""What every service built on `make_app` does with requests, good and bad; no sockets."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from shared.errors import EngineDeadError, OverloadedError
from shared.http.lifecycle import shutdown_error
from tests.fakes.tiny_service import TinyService, TinySettings
from tests.shared.http.asgi import Wire, call, http_scope

JSON = {"content-type": "application/json"}


def tiny(**settings: Any) -> TinyService:
    return TinyService(TinySettings(**settings))


def post(service: TinyService, content: bytes, path: str = "/echo", **headers: str) -> httpx.Response:
    return call(service.app, "POST", path, content=content, headers=headers or JSON)


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error", "message"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["code"], str)
    error: dict[str, Any] = body["error"]
    return error


BAD_BODIES = {
    "empty": b"",
    "not json": b"{",
    "no object": b"[]",
    "nan": b'{"text":"a","ratio":NaN}',
    "infinity": b'{"text":"a","ratio":-Infinity}',
    "overflow": b'{"text":"a","ratio":1e999}',
    "lone surrogate": b'{"text":"\\ud800"}',
    "not utf-8": b'{"text":"\xff"}',
    "bottomless": b'{"text":"a","nested":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "unknown field": b'{"text":"a","txet":"b"}',
    "huge int": b'{"text":"a","number":' + b"9" * 5000 + b"}",
    "int of 64 bits": b'{"text":"a","number":9223372036854775808}',
    "bool as int": b'{"text":"a","number":true}',
    "string as int": b'{"text":"a","number":"3"}',
    "missing field": b"{}",
    "null field": b'{"text":null}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies_are_400_in_the_one_shape(name: str) -> None:
    response = post(tiny(), BAD_BODIES[name])
    error = error_of(response)
    assert response.status_code == 400
    assert error["code"] == "invalid_request"
    assert len(response.content) < 1000, "the input is not echoed"


@pytest.mark.parametrize(
    ("name", "param"),
    [("unknown field", "txet"), ("bool as int", "number"), ("missing field", "text"), ("nan", "ratio")],
)
def test_a_bad_field_is_named(name: str, param: str) -> None:
    assert error_of(post(tiny(), BAD_BODIES[name]))["param"] == param


def test_content_type_must_be_json() -> None:
    good = b'{"text":"a"}'
    for headers in ({"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        error = error_of(call(tiny().app, "POST", "/echo", content=good, headers=headers))
        assert (error["code"], error["param"]) == ("invalid_request", "Content-Type")
    assert error_of(call(tiny().app, "POST", "/echo", content=good))["param"] == "Content-Type"
    for value in ("application/json; charset=utf-8", "application/vnd.trivium+json", "Application/JSON"):
        assert call(tiny().app, "POST", "/echo", content=good, headers={"content-type": value}).status_code == 200


def test_a_compressed_body_is_refused_by_name() -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    for body in (b'{"text":"a"}', gzip.compress(b'{"text":"a"}')):
        assert error_of(call(tiny().app, "POST", "/echo", content=body, headers=headers))["param"] == "Content-Encoding"
    plain = {**headers, "content-encoding": "identity"}
    assert call(tiny().app, "POST", "/echo", content=b'{"text":"a"}', headers=plain).status_code == 200


def test_good_body_comes_back() -> None:
    text = 'ü – "quoted" – \U0001f600'
    response = post(tiny(), json.dumps({"text": text, "number": -(2**63)}).encode())
    assert response.status_code == 200
    assert response.json()["text"] == text


def test_unknown_path_and_wrong_method() -> None:
    response = call(tiny().app, "POST", "/v1/nope")
    assert (response.status_code, error_of(response)["code"]) == (404, "route_not_found")
    response = call(tiny().app, "GET", "/echo")
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")


def test_an_error_of_the_service_and_a_bug() -> None:
    service = tiny()
    service.error = OverloadedError("full", retry_after_s=3)
    response = post(service, b'{"text":"a"}')
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    response = post(service, b"", "/bug")
    assert (response.status_code, error_of(response)["code"]) == (500, "internal")
    assert "secret" not in response.text


def test_body_limit_declared_and_while_it_comes() -> None:
    service = tiny(max_body_bytes=1024)
    declared = post(service, b'{"text":"' + b"a" * 2000 + b'"}')

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"a" * 500

    chunked = call(service.app, "POST", "/echo", content=chunks(), headers=JSON)
    for response in (declared, chunked):
        assert (response.status_code, error_of(response)["code"]) == (413, "payload_too_large")
        assert "1024" in error_of(response)["message"]
        assert response.headers["connection"] == "close"
    assert post(service, b'{"text":"' + b"a" * 900 + b'"}').status_code == 200


def test_api_key_guards_all_but_the_open_paths() -> None:
    service = tiny(api_key=SecretStr("kéy"))
    for given in ("", "Bearer wrong", "Bearer", "Basic kéy", "Bearer kéy2"):
        headers = httpx.Headers({"authorization": given} if given else {}, encoding="utf-8")
        for path in ("/echo", "/v1/nope", "/openapi.json"):
            response = call(service.app, "POST", path, headers=headers)
            assert (response.status_code, error_of(response)["code"]) == (401, "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/ready", "/metrics"):
        assert call(service.app, "GET", path).status_code == 200


def test_api_key_lets_its_owner_in() -> None:
    service = tiny(api_key=SecretStr("key"))
    for scheme in ("Bearer", "bearer"):
        response = post(service, b'{"text":"a"}', **JSON, authorization=f"{scheme} key")
        assert response.status_code == 200


def test_request_id_in_and_out() -> None:
    service = tiny()
    response = post(service, b"", "/request-id", **{"x-request-id": "abc-1.2:3_4"})
    assert response.headers["x-request-id"] == response.text == "abc-1.2:3_4"
    for bad in (b"", b"a b", b"x" * 129, "ü".encode()):
        made = call(service.app, "POST", "/request-id", headers=[(b"x-request-id", bad)])
        assert made.headers["x-request-id"] == made.text
        assert len(made.text) == 32
    assert len(call(service.app, "POST", "/v1/nope").headers["x-request-id"]) == 32


def test_metrics_count_by_declared_path_only() -> None:
    service = tiny()
    post(service, b'{"text":"a"}')
    call(service.app, "GET", "/nope-1")
    call(service.app, "GET", "/nope-2")
    text = call(service.app, "GET", "/metrics").text
    assert 'trivium_tiny_http_requests_total{code="200",path="/echo"} 1.0' in text
    assert 'trivium_tiny_http_requests_total{code="404",path="other"} 2.0' in text
    assert "nope" not in text


def test_open_paths() -> None:
    service = tiny()
    assert call(service.app, "GET", "/health").json() == {"status": "alive"}
    assert call(service.app, "GET", "/ready").json() == {"ready": True, "parts": {"tiny": "ready"}}
    service.lifecycle.start_draining(10)
    ready = call(service.app, "GET", "/ready")
    assert (ready.status_code, ready.json()["parts"]["service"]) == (503, "draining")
    assert call(service.app, "GET", "/health").status_code == 200
    refused = post(service, b'{"text":"a"}')
    assert (refused.status_code, error_of(refused)["code"]) == (503, "not_ready")
    assert refused.headers["retry-after"] == "1"


def test_stream_framing() -> None:
    service = tiny()
    service.released.set()
    response = post(service, b"", "/stream")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.content == b'data: {"n":0}\n\ndata: {"n":1}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("error", "code"), [(EngineDeadError("gone"), "engine_dead"), (RuntimeError("secret"), "internal")]
)
def test_stream_error_after_the_first_byte(error: Exception, code: str) -> None:
    service = tiny()
    service.error = error
    response = post(service, b"", "/stream")
    first, second, done, rest = response.text.split("\n\n")
    assert response.status_code == 200
    assert (first, done, rest) == ('data: {"n":0}', "data: [DONE]", "")
    assert json.loads(second.removeprefix("data: "))["error"]["code"] == code
    assert "secret" not in second


def test_stream_is_closed_when_the_client_leaves() -> None:
    async def run() -> None:
        service, wire = tiny(), Wire()
        exchange = asyncio.create_task(service.app(http_scope("/stream"), wire.receive, wire.send))
        await wire.has_sent.wait()
        assert not service.is_stream_closed
        wire.hang_up.set()
        await exchange
        assert service.is_stream_closed
        assert b"DONE" not in wire.body

    asyncio.run(run())


def test_end_of_the_grace_period_ends_streams_with_an_error() -> None:
    async def run() -> None:
        service, wire = tiny(), Wire()
        exchange = asyncio.create_task(service.app(http_scope("/stream"), wire.receive, wire.send))
        await wire.has_sent.wait()
        service.lifecycle.start_draining(0)
        assert not service.lifecycle.is_over()
        await exchange
        assert service.lifecycle.is_over()
        _, event, done, _ = wire.body.split(b"\n\n")
        assert json.loads(event.removeprefix(b"data: "))["message"] == shutdown_error().message
        assert done == b"data: [DONE]"

    asyncio.run(run())
