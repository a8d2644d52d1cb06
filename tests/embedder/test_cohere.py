"""Cohere's embedding routes: the vectors of `/v1/embeddings` in Cohere's shapes, and its own field names in every refusal."""

from base64 import b64encode
from typing import Any

import httpx
import numpy as np
import pytest

from shared.contracts.cohere_embed import CohereEmbedResponse
from tests.embedder.conftest import MODEL

pytestmark = pytest.mark.models
TEXTS = ["a", "The capital of France"]

BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({}, "texts"),
    ({"texts": []}, "texts"),
    ({"texts": "a"}, "texts"),
    ({"texts": ["a", ""]}, "texts"),
    ({"texts": ["a"] * 2049}, "texts"),
    ({"texts": ["a"], "truncate": "end"}, "truncate"),
    ({"texts": ["a"], "input_type": "query"}, "input_type"),
    ({"texts": ["a"], "embedding_types": []}, "embedding_types"),
    ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types.0"),
    ({"texts": ["a"], "output_dimension": 64}, "output_dimension"),
    ({"texts": ["a"], "images": ["data:image/png;base64,AA=="]}, "images"),
    ({"texts": ["a"], "inputs": [{"content": []}]}, "inputs"),
    ({"texts": ["a"], "max_tokens": 3}, "max_tokens"),
    ({"texts": ["a"], "model": "embed-v4.0"}, "model"),
]


def post(address: str, version: int, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{address}/v{version}/embed", json={"model": MODEL, **body}, timeout=60)


@pytest.fixture(scope="module")
def vectors(address: str) -> list[list[float]]:
    answer = httpx.post(f"{address}/v1/embeddings", json={"input": TEXTS}).json()
    return [item["embedding"] for item in answer["data"]]


@pytest.mark.parametrize("version", [1, 2])
def test_vectors_by_format(address: str, vectors: list[list[float]], version: int) -> None:
    body = {"texts": TEXTS, "input_type": "search_document", "embedding_types": ["float", "base64"], "truncate": "END"}
    answer = CohereEmbedResponse.model_validate(post(address, version, body).json())
    base64 = [b64encode(np.array(vector, "<f4").tobytes()).decode() for vector in vectors]
    assert answer.embeddings == {"float": vectors, "base64": base64}
    assert answer.response_type == "embeddings_by_type"
    assert (answer.texts, answer.meta.api_version.version) == (TEXTS, str(version))
    assert (answer.meta.billed_units, answer.meta.warnings) == ({"input_tokens": 9}, None)


def test_version_1_answers_a_plain_list_unless_formats_are_named(address: str, vectors: list[list[float]]) -> None:
    plain, by_type = (post(address, version, {"texts": TEXTS}).json() for version in (1, 2))
    assert (plain["response_type"], plain["embeddings"]) == ("embeddings_floats", vectors)
    assert (by_type["response_type"], by_type["embeddings"]) == ("embeddings_by_type", {"float": vectors})


def test_a_long_text_loses_its_end_and_is_named(address: str) -> None:
    long = "word " * 300
    answer = post(address, 2, {"texts": ["a", long]}).json()
    assert answer["meta"]["warnings"] == ["texts.1 was too long and was cut"]
    cut = httpx.post(f"{address}/v1/embeddings", json={"input": long, "truncate": "end"}).json()
    assert answer["embeddings"]["float"][1] == cut["data"][0]["embedding"]
    assert post(address, 2, {"texts": [long], "truncate": "NONE"}).status_code == 400


@pytest.mark.parametrize(("body", "param"), BAD_BODIES, ids=[str(number) for number in range(len(BAD_BODIES))])
@pytest.mark.parametrize("version", [1, 2])
def test_refusals_name_the_field(address: str, version: int, body: dict[str, Any], param: str) -> None:
    answer = post(address, version, body)
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400)
    assert error["param"] == param
    assert answer.json()["message"] == error["message"]
