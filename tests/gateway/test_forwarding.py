"""What reaches a service and what comes back: paths, headers, bodies, models, errors."""

import json
import time
from typing import Any

import httpx
import openai
import pytest

from services.gateway.paths import SERVICE_OF_PATH
from shared.errors import OverloadedError
from shared.http.status import error_body
from tests.fakes.fake_service import Call
from tests.gateway.conftest import Suite


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error", "message"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def test_every_path_reaches_its_service_unchanged(suite: Suite) -> None:
    suite.ready()
    for path, service in SERVICE_OF_PATH.items():
        fake = getattr(suite, service.value)
        if path == "/v1/adapters":
            response = suite.client.get(path, params={"a": "1 2"})
        else:
            response = suite.client.post(path + "?a=1%202", content=b' {"x" : "\xc3\xbc"} ')
            assert fake.calls[-1].body == b' {"x" : "\xc3\xbc"} '
        assert response.status_code == 200
        assert response.json()["path"] == fake.calls[-1].path == path
        assert fake.calls[-1].query in ("a=1%202", "a=1+2")


def test_unknown_path_and_wrong_method_are_the_gateways(suite: Suite) -> None:
    suite.ready()
    assert error_of(suite.client.post("/v1/nope"))["code"] == "route_not_found"
    assert error_of(suite.client.get("/v1/embeddings"))["code"] == "method_not_allowed"
    assert not suite.embedder.calls


def test_headers_out_and_in(suite: Suite) -> None:
    async def answer(call: Call) -> None:
        await call.reply(
            b"{}",
            headers={
                "x-trivium-a": "1",
                "retry-after": "3",
                "x-should-retry": "false",
                "www-authenticate": "Bearer",
                "keep-alive": "timeout=5",
                "connection": "x-private",
                "x-private": "1",
                "x-request-id": "of-the-service",
            },
        )

    suite.generator.handler = answer
    suite.ready()
    deadline = str(int(time.time() * 1000) + 60_000)
    response = suite.client.post(
        "/v1/completions",
        json={},
        headers={
            "x-request-id": "mine",
            "traceparent": "00-a-b-01",
            "tracestate": "a=b",
            "x-request-deadline": deadline,
            "x-trivium-b": "2",
            "cookie": "secret",
            "connection": "keep-alive, x-hop",
            "x-hop": "1",
            "authorization": "Bearer theirs",
        },
    )
    out = suite.generator.calls[0].headers
    assert out["x-request-id"] == "mine"
    assert (out["traceparent"], out["tracestate"], out["x-trivium-b"]) == ("00-a-b-01", "a=b", "2")
    assert (out["x-request-deadline"], out["content-type"]) == (deadline, "application/json")
    assert out["authorization"] == "Bearer theirs"
    assert not {"cookie", "x-hop", "accept-encoding", "transfer-encoding"} & set(out)
    assert response.headers["x-request-id"] == "mine"
    for name, value in (("x-trivium-a", "1"), ("retry-after", "3"), ("x-should-retry", "false")):
        assert response.headers[name] == value
    assert response.headers["www-authenticate"] == "Bearer"
    assert not {"keep-alive", "x-private"} & set(response.headers)
    assert len(response.headers.get_list("date")) == 1


def test_keys_of_gateway_services_and_admin(suite: Suite) -> None:
    suite.ready(api_key="key", admin_api_key="admin", upstream_api_key="up")
    for path, given, status, sent in (
        ("/v1/completions", "key", 200, "Bearer up"),
        ("/v1/completions", "wrong", 401, None),
        ("/v1/load_lora_adapter", "admin", 200, "Bearer admin"),
        ("/v1/load_lora_adapter", "key", 401, None),
    ):
        suite.generator.calls.clear()
        response = suite.client.post(path, json={}, headers={"authorization": f"Bearer {given}"})
        assert response.status_code == status
        assert [call.headers.get("authorization") for call in suite.generator.calls] == ([sent] if sent else [])


def test_models_are_merged_and_those_of_services_that_are_not_ready_left_out(suite: Suite) -> None:
    suite.generator.models = ["gen", "adapter"]
    suite.ready(upstream_api_key="up")
    models = suite.client.get("/v1/models").json()["data"]
    assert [(model["id"], model["task"]) for model in models] == [
        ("gen", "generate"),
        ("adapter", "generate"),
        ("emb", "embed"),
        ("rer", "rerank"),
    ]
    assert set(suite.embedder.model_keys) == {"Bearer up"}
    suite.generator.models.append("just-loaded")
    assert suite.client.get("/v1/models/just-loaded").json()["id"] == "just-loaded"
    assert error_of(suite.client.get("/v1/models/nope"))["code"] == "model_not_found"
    suite.embedder.state = "starting"
    suite.wait(lambda: suite.parts()["embedder"] == "starting", "embedder starting")
    ids = [model["id"] for model in suite.client.get("/v1/models").json()["data"]]
    assert ids == ["gen", "adapter", "just-loaded", "rer"]


def test_a_model_of_another_task_is_explained(suite: Suite) -> None:
    suite.ready()
    for path, model, right_path in (
        ("/v1/chat/completions", "emb", "/v1/embeddings"),
        ("/v1/embeddings", "gen", "/v1/chat/completions"),
        ("/rerank", "emb", "/v1/embeddings"),
        ("/v1/embeddings", "rer", "/v1/rerank"),
    ):
        response = suite.client.post(path, content=json.dumps({"messages": [{"model": "x"}], "model": model}))
        error = error_of(response)
        assert (response.status_code, error["code"], error["param"]) == (400, "invalid_request", "model")
        assert right_path in error["message"]
    assert not suite.generator.calls + suite.embedder.calls + suite.reranker.calls


def test_an_adapter_may_not_have_the_name_of_another_services_model(suite: Suite) -> None:
    suite.ready(admin_api_key="a")
    headers = {"authorization": "Bearer a"}

    def load(name: object) -> httpx.Response:
        body = {"lora_name": name, "lora_path": "folder"}
        return suite.client.post("/v1/load_lora_adapter", json=body, headers=headers)

    for name in ("emb", "rer"):
        response = load(name)
        assert (response.status_code, error_of(response)["param"]) == (400, "lora_name")
    assert not suite.generator.calls
    for name in ("pirate", "gen", None, 3):  # the generator knows its own, and what is no name
        assert load(name).status_code == 200
    assert len(suite.generator.calls) == 4


def test_all_else_is_left_to_the_service(suite: Suite) -> None:
    suite.ready()
    for body in (
        b'{"model":"unknown"}',
        b'{"model":"gen"}',
        b"{}",
        b"",
        b'{"model":"emb"',
        b'[{"model":"emb"}]',
        b'{"model":"gen","messages":[{"model":"emb"}]}',
        b'{"prompt":"say \\"model\\": \\"emb\\""}',
        b'{"model":["emb"]}',
        b'{"model":null,"x":{"model":"emb"}}',
        b"\xff\xfe",
    ):
        assert suite.client.post("/v1/completions", content=body).status_code == 200
        assert suite.generator.calls[-1].body == body


def test_errors_of_services_pass_and_other_failures_are_502(suite: Suite) -> None:
    ours = json.dumps(error_body(OverloadedError("full")).model_dump()).encode()
    answers: list[tuple[int, bytes, dict[str, str]]] = [
        (429, ours, {"retry-after": "7", "content-type": "application/json"}),
        (500, b"<html>Internal Server Error</html>", {"content-type": "text/html"}),
        (404, b'{"detail":"Not Found"}', {}),
        (302, b"", {"location": "http://elsewhere/"}),
    ]

    async def answer(call: Call) -> None:
        status, content, headers = answers[len(suite.embedder.calls) - 1]
        await call.reply(content, status, headers)

    suite.embedder.handler = answer
    suite.ready()
    response = suite.client.post("/v1/embeddings", json={})
    assert (response.status_code, response.content, response.headers["retry-after"]) == (429, ours, "7")
    for _ in answers[1:]:
        response = suite.client.post("/v1/embeddings", json={})
        error = error_of(response)
        assert (response.status_code, error["code"]) == (502, "upstream_invalid")
        assert "embedder" in error["message"]
    assert suite.metric('trivium_gateway_upstream_errors_total{kind="upstream_invalid",service="embedder"}') == 3
    assert suite.metric('trivium_gateway_upstream_requests_total{code="429",service="embedder"}') == 1
    assert len(suite.embedder.calls) == 4, "nothing was sent twice"


def test_body_limits_are_those_of_the_target(suite: Suite) -> None:
    suite.ready(max_body_bytes=2000, generator_max_body_bytes=4000)
    for path, limit in (("/v1/completions", 4000), ("/v1/embeddings", 2000), ("/v1/rerank", 2000)):
        assert suite.client.post(path, content=b"x" * limit).status_code == 200
        response = suite.client.post(path, content=b"x" * (limit + 1))
        assert (response.status_code, error_of(response)["code"]) == (413, "payload_too_large")


def test_deadline(suite: Suite) -> None:
    async def silent(call: Call) -> None:
        await suite.generator.wait_disconnect(call)

    suite.generator.handler = silent
    suite.ready()
    for value, status, code in (
        ("1000", 504, "deadline_exceeded"),
        ("soon", 400, "invalid_request"),
        (str(int(time.time() * 1000) + 300), 504, "deadline_exceeded"),
    ):
        response = suite.client.post("/v1/completions", json={}, headers={"x-request-deadline": value})
        assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert suite.generator.disconnected.wait(10), "the service is told that nobody waits"
    assert len(suite.generator.calls) == 1


def test_first_byte_time_out(suite: Suite) -> None:
    async def silent(call: Call) -> None:
        await suite.generator.wait_disconnect(call)

    suite.generator.handler = silent
    suite.ready(read_timeout_s=0.2)
    response = suite.client.post("/v1/completions", json={})
    assert (response.status_code, error_of(response)["code"]) == (504, "deadline_exceeded")
    assert suite.generator.disconnected.wait(10)
    assert len(suite.generator.calls) == 1


def test_more_requests_than_may_be_in_flight_are_429(suite: Suite) -> None:
    async def hold(call: Call) -> None:
        await call.start_events()
        await call.chunk(b"data: 1\n\n")
        await suite.generator.wait_release()
        await call.chunk(b"data: [DONE]\n\n", is_last=True)

    suite.generator.handler = hold
    suite.ready(max_in_flight=1)
    with suite.client.stream("POST", "/v1/completions", json={}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "data: 1"
        refused = suite.client.post("/v1/embeddings", json={})
        assert (refused.status_code, error_of(refused)["code"], refused.headers["retry-after"]) == (
            429,
            "overloaded",
            "1",
        )
        assert suite.metric('trivium_gateway_requests_in_flight{service="generator"}') == 1
        suite.generator.release.set()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    suite.wait(lambda: suite.client.post("/v1/embeddings", json={}).status_code == 200, "free again")


def test_openai_client(suite: Suite) -> None:
    chunk: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gen"}

    async def chat(call: Call) -> None:
        await call.start_events()
        for text in ("Par", "is"):
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            await call.chunk(b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n")
        await call.chunk(b"data: [DONE]\n\n", is_last=True)

    async def embed(call: Call) -> None:
        await call.reply(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": 0, "embedding": [1.0, 0.0]}],
                "model": "emb",
                "usage": {"prompt_tokens": 1, "total_tokens": 1},
            }
        )

    suite.generator.handler, suite.embedder.handler = chat, embed
    suite.ready()
    with openai.OpenAI(base_url=suite.url + "/v1", api_key="any", max_retries=0) as client:
        stream = client.chat.completions.create(model="gen", messages=[{"role": "user", "content": "?"}], stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == "Paris"
        assert client.embeddings.create(model="emb", input="a").data[0].embedding == [1.0, 0.0]
        assert [model.id for model in client.models.list()] == ["gen", "emb", "rer"]
        with pytest.raises(openai.BadRequestError) as raised:
            client.embeddings.create(model="gen", input="a")
        assert (raised.value.code, raised.value.param) == ("invalid_request", "model")
        assert raised.value.request_id
