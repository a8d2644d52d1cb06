"""What clients may send to the embedder and what they are told when they may not.

After every refusal the next request works.
"""

from typing import Any

import httpx
import numpy as np
import pytest

from services.embedder.render import render_embeddings, round_to_float32_digits
from shared.contracts.embeddings import EmbeddingResponse, EmbeddingUsage
from tests.embedder.conftest import MODEL

VOCAB_SIZE = 30522

BAD_BODIES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "input", "required"),
    ({"input": None}, "input", "input"),
    ({"input": []}, "input", "empty list"),
    ({"input": ""}, "input", "empty string"),
    ({"input": ["a", ""]}, "input", "input.1 is an empty string"),
    ({"input": [[]]}, "input", "no tokens"),
    ({"input": ["a", 1]}, "input", ""),
    ({"input": [1, "a"]}, "input", ""),
    ({"input": [[1], "a"]}, "input", ""),
    ({"input": [True]}, "input", ""),
    ({"input": [1.5]}, "input", ""),
    ({"input": {"text": "a"}}, "input", ""),
    ({"input": [5, VOCAB_SIZE, VOCAB_SIZE + 1]}, "input", str(VOCAB_SIZE)),
    ({"input": [[5], [-1]]}, "input", ""),
    ({"input": ["a"] * 2049}, "input", "2048"),
    ({"input": "a", "dimensions": 64}, "dimensions", "dimensions"),
    ({"input": "a", "dimensions": 0}, "dimensions", "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", ""),
    ({"input": "a", "model": 3}, "model", ""),
    ({"input": "a", "truncate": True}, "truncate", ""),
    ({"input": "a", "truncate": "middle"}, "truncate", ""),
    ({"input": "a", "input_type": "clustering"}, "input_type", ""),
    ({"input": "a", "prompt_name": "query"}, "prompt_name", "its prompts are: none"),
    ({"input": "a", "input_type": "query", "instruction": "b"}, "instruction", "send one of them"),
    ({"input": [5], "input_type": "query"}, "input_type", "token ids"),
    ({"input": "a", "dimensions": 385}, "dimensions", "384"),
]


def post(address: str, body: Any) -> httpx.Response:
    return httpx.post(f"{address}/v1/embeddings", json=body, timeout=60)


@pytest.mark.models
@pytest.mark.parametrize(("body", "param", "words"), BAD_BODIES)
def test_a_bad_request_names_its_field(address: str, body: dict[str, Any], param: str, words: str) -> None:
    answer = post(address, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert (error["param"] or "").split(".")[0] == param
    assert words in error["message"]
    assert post(address, {"input": "and now a good one"}).status_code == 200


@pytest.mark.models
def test_what_is_too_long_is_refused_with_the_counts(address: str) -> None:
    answer = post(address, {"input": ["short", "word " * 255]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "257" in error["message"]
    assert "256" in error["message"]
    assert post(address, {"input": "word " * 254}).json()["usage"]["prompt_tokens"] == 256


@pytest.mark.models
@pytest.mark.parametrize(
    "text", ["word " * 20_000, "words" * 20_000, " ", "\u0000", "\U0001f642" * 200, "a\u0300" * 99]
)
def test_odd_texts_are_refused_or_embedded_in_numbers(address: str, text: str) -> None:
    answer = post(address, {"input": text, "truncate": "end"})
    assert answer.status_code == 200
    assert np.isfinite(answer.json()["data"][0]["embedding"]).all()
    refused = post(address, {"input": text})
    assert refused.status_code == (400 if answer.json().get("truncated") else 200)


@pytest.mark.models
@pytest.mark.parametrize(
    "body", [b'{"input":"\\ud800"}', b'{"input":"\xff"}', b'{"input":[[NaN]]}', b'{"input":"a"', b"[]", b""]
)
def test_what_is_no_json_text_is_refused(address: str, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{address}/v1/embeddings", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.models
def test_an_unknown_model_is_not_found(address: str) -> None:
    answer = post(address, {"input": "a", "model": "text-embedding-3-small"})
    assert answer.status_code == 404
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("model_not_found", "model")


@pytest.mark.models
@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": MODEL}, {"user": "u"}, {"encoding_format": None}])
def test_what_may_be_left_out_or_null(address: str, body: dict[str, Any]) -> None:
    answer = post(address, {"input": "a", **body})
    assert answer.status_code == 200
    content = answer.json()
    assert content["object"] == "list"
    assert content["model"] == MODEL
    assert content["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert content["data"][0].keys() == {"object", "index", "embedding"}
    assert len(content["data"][0]["embedding"]) == 384


@pytest.mark.models
def test_the_largest_request_is_served(address: str) -> None:
    assert len(post(address, {"input": ["a"] * 2048, "encoding_format": "base64"}).json()["data"]) == 2048


@pytest.mark.models
def test_the_model_list(address: str) -> None:
    (entry,) = httpx.get(f"{address}/v1/models").json()["data"]
    assert httpx.get(f"{address}/v1/models/{MODEL}").json() == entry
    assert entry.pop("created") > 0
    expected = {"id": MODEL, "object": "model", "owned_by": "trivium", "task": "embed", "max_model_len": 256}
    assert entry == expected


@pytest.mark.models
def test_metrics_name_the_stages(address: str) -> None:
    post(address, {"input": "a"})
    text = httpx.get(f"{address}/metrics").text
    for stage in ("prepare", "queue", "forward"):
        assert f"trivium_embedder_{stage}_seconds_count" in text
    assert "trivium_embedder_padding_tokens_total" in text


@pytest.mark.parametrize("truncated", [[], [0, 1]])
@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_rendered_bytes_are_those_of_the_contract(encoding_format: Any, truncated: list[int]) -> None:
    rows = np.array([[0.1, -2.5e-8, 3.0], [1e30, 0.0, -0.5]], np.float32)
    usage = EmbeddingUsage(prompt_tokens=7, total_tokens=7)
    content = render_embeddings(rows, encoding_format, 'a "quoted" name', usage, truncated)
    parsed = EmbeddingResponse.model_validate_json(content)
    assert parsed.model_dump_json(exclude_none=True).encode() == content
    assert parsed.truncated == (truncated or None)
    if encoding_format == "float":
        assert [np.float32(item.embedding).tolist() for item in parsed.data] == rows.tolist()


def test_rounded_floats_are_the_same_float32() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    edges = np.nextafter(np.float32(10) ** np.arange(-30, 30, dtype=np.float32), np.float32(0))
    values = np.concatenate([values, edges, np.float32([0, 1, -1, 1e-45])])
    rounded = round_to_float32_digits(values)
    assert np.array_equal(rounded.astype(np.float32), values)
    usual = rounded[(np.abs(values) > 1e-6) & (np.abs(values) < 1)]
    assert len(usual) > 1000
    assert all(len(repr(value).partition("e")[0].replace(".", "").lstrip("-0")) <= 9 for value in usual.tolist())
