"""A folder of an embedder, served by the reranker: cosines of sentence-transformers, and what only a cross-encoder can do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sentence_transformers import SentenceTransformer

from services.reranker.app import make_reranker_app
from services.reranker.settings import RerankerSettings
from shared.http.lifecycle import Lifecycle
from tests.fakes.ready_service import ready_service

pytestmark = pytest.mark.models

QUERY = "What is the capital of France?"
DOCUMENTS = ["Berlin is the capital of Germany.", "Paris is the capital of France.", "Bananas are rich in potassium."]


@pytest.fixture(scope="module")
def folder(models_dir: Path) -> Path:
    return models_dir / "all-minilm-l6-v2"


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with ready_service(make_reranker_app(RerankerSettings(model=str(folder), num_threads=2), Lifecycle())) as address:
        yield address


def post(address: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{address}/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, **body}, timeout=60)


@pytest.mark.parametrize("changes", [{}, {"raw_scores": True}])
def test_scores_are_cosines(address: str, folder: Path, changes: dict[str, Any]) -> None:
    vectors = SentenceTransformer(str(folder), device="cpu").encode([QUERY, *DOCUMENTS])
    results = post(address, **changes).json()["results"]
    assert [result["index"] for result in results] == [1, 0, 2]
    ours = {result["index"]: result["relevance_score"] for result in results}
    assert [ours[index] for index in range(3)] == pytest.approx((vectors[1:] @ vectors[0]).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"documents": ["a", "word " * 300]}, "documents", "documents.1 has 302 tokens"),
        ({"instruction": "Find the answer."}, "instruction", "not supported by this model"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc", "not supported by this model"),
    ],
)
def test_what_it_cannot_do_is_refused(address: str, changes: dict[str, Any], param: str, words: str) -> None:
    answer = post(address, **changes)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert words in answer.json()["error"]["message"]
