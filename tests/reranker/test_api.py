"""The reranker on the embedded model: what it answers in the shapes of Jina's and Cohere's clients, and what it refuses.

After every refusal the next request works.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from services.reranker.app import make_reranker_app
from services.reranker.settings import RerankerSettings
from shared.http.lifecycle import Lifecycle
from tests.fakes.ready_service import ready_service

pytestmark = pytest.mark.models

MODEL = "minilm-reranker"
QUERY = "What is the capital of France?"
DOCUMENTS = [
    "Berlin is the capital of Germany.",
    "Paris is the capital and largest city of France.",
    "Bananas are rich in potassium.",
    "Berlin is the capital of Germany.",
]

BAD_BODIES: list[tuple[dict[str, Any], str, str]] = [
    ({"documents": DOCUMENTS}, "query", "required"),
    ({"query": QUERY}, "documents", "required"),
    ({"query": "", "documents": DOCUMENTS}, "query", "empty string"),
    ({"query": QUERY, "documents": []}, "documents", "empty list"),
    ({"query": QUERY, "documents": ["a", ""]}, "documents", "documents.1 is an empty string"),
    ({"query": QUERY, "documents": [{"text": ""}]}, "documents", "empty string"),
    ({"query": QUERY, "documents": [{"title": "a"}]}, "documents", ""),
    ({"query": QUERY, "documents": "a"}, "documents", ""),
    ({"query": QUERY, "documents": [3]}, "documents", ""),
    ({"query": QUERY, "documents": ["a"] * 9}, "documents", "limit is 8"),
    ({"query": QUERY, "documents": DOCUMENTS, "top_n": 0}, "top_n", ""),
    ({"query": QUERY, "documents": DOCUMENTS, "top_n": -1}, "top_n", ""),
    ({"query": QUERY, "documents": DOCUMENTS, "rank_fields": ["x"]}, "rank_fields", ""),
]


@pytest.fixture(scope="module")
def address(models_dir: Path) -> Iterator[str]:
    settings = RerankerSettings(model=str(models_dir / MODEL), num_threads=2, max_documents=8)
    with ready_service(make_reranker_app(settings, Lifecycle())) as address:
        yield address


def post(address: str, body: Any, path: str = "/v1/rerank") -> httpx.Response:
    return httpx.post(f"{address}{path}", json=body, timeout=60)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_the_answer_on_every_path(address: str, path: str) -> None:
    answer = post(address, {"model": MODEL, "query": QUERY, "documents": DOCUMENTS}, path)
    assert answer.status_code == 200
    content = answer.json()
    is_cohere_v2 = path == "/v2/rerank"
    rest = set() if is_cohere_v2 else {"object", "model", "usage"}
    assert content.keys() == {"id", "results", "meta"} | rest
    assert [result["index"] for result in content["results"]] == [1, 2, 0, 3]
    assert all(result.keys() == {"index", "relevance_score"} for result in content["results"])
    assert content["results"][2]["relevance_score"] == content["results"][3]["relevance_score"]
    version = "2" if is_cohere_v2 else "1"
    assert content["meta"] == {"api_version": {"version": version}, "billed_units": {"search_units": 1}}
    if not is_cohere_v2:
        assert (content["object"], content["model"]) == ("list", MODEL)
        assert content["usage"]["prompt_tokens"] == content["usage"]["total_tokens"] > 0


def test_scores_are_those_of_cross_encoder(address: str, models_dir: Path) -> None:
    peer = CrossEncoder(str(models_dir / MODEL), device="cpu")
    expected = peer.predict([(QUERY, document) for document in DOCUMENTS])
    content = post(address, {"query": QUERY, "documents": DOCUMENTS}).json()
    ours = {result["index"]: result["relevance_score"] for result in content["results"]}
    assert [ours[index] for index in range(4)] == pytest.approx(expected.tolist(), abs=1e-5)
    assert np.all(np.diff([result["relevance_score"] for result in content["results"]]) <= 0)


def test_top_n_and_documents_given_back(address: str) -> None:
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}]
    body = {"query": QUERY, "documents": documents, "return_documents": True}
    (best,) = post(address, {**body, "top_n": 1}).json()["results"]
    assert (best["index"], best["document"]) == (1, {"text": DOCUMENTS[1]})
    assert len(post(address, {**body, "top_n": 99}).json()["results"]) == 2


@pytest.mark.parametrize(
    "body", [{"top_n": None, "return_documents": None, "user": None, "model": None}, {"user": "u"}]
)
def test_what_may_be_null(address: str, body: dict[str, Any]) -> None:
    content = post(address, {"query": QUERY, "documents": DOCUMENTS, **body}).json()
    assert len(content["results"]) == 4
    assert "document" not in content["results"][0]


@pytest.mark.parametrize(("body", "param", "words"), BAD_BODIES)
def test_a_bad_request_names_its_field(address: str, body: dict[str, Any], param: str, words: str) -> None:
    answer = post(address, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"] or "").split(".")[0] == param
    assert words in error["message"]
    assert answer.json()["message"] == error["message"]
    assert post(address, {"query": QUERY, "documents": DOCUMENTS}).status_code == 200


def test_what_is_too_long_is_refused_with_the_counts(address: str) -> None:
    error = post(address, {"query": QUERY, "documents": ["a", "word " * 600]}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "documents")
    assert "documents.1 has 600 tokens; the model's maximum of 512 leaves 502" in error["message"]
    error = post(address, {"query": "word " * 600, "documents": ["a"]}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "query")


def test_an_unknown_model_is_not_found(address: str) -> None:
    answer = post(address, {"query": QUERY, "documents": DOCUMENTS, "model": "rerank-v3.5"})
    assert answer.status_code == 404
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("model_not_found", "model")


def test_the_model_list(address: str) -> None:
    (entry,) = httpx.get(f"{address}/v1/models").json()["data"]
    assert httpx.get(f"{address}/v1/models/{MODEL}").json() == entry
    assert (entry["id"], entry["task"], entry["max_model_len"]) == (MODEL, "rerank", 512)
