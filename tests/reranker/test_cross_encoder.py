"""A cross-encoder and a classifier of several labels, served: their answers in every client's shape, and what they refuse.

The references are sentence-transformers' CrossEncoder and transformers on the same folders.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from services.reranker.app import make_reranker_app
from services.reranker.settings import RerankerSettings
from shared.http.lifecycle import Lifecycle
from tests.fakes.ready_service import ready_service
from tests.shared.modeling.tiny_encoders import save_classifier

QUERY = "w50 w51"
DOCUMENTS = ["w60 w61 w62 w63", "w70", "w50 w51", "w80 w81 w82 w83"]
LONG = "w9 " * 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("bert"), "bert")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with ready_service(make_reranker_app(RerankerSettings(model=str(folder)), Lifecycle())) as address:
        yield address


@pytest.fixture(scope="module")
def labels_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = {0: "sad", 1: "calm", 2: "glad"}
    return save_classifier(tmp_path_factory.mktemp("roberta"), "roberta", num_labels=3, id2label=labels)


@pytest.fixture(scope="module")
def labels_address(labels_folder: Path) -> Iterator[str]:
    with ready_service(make_reranker_app(RerankerSettings(model=str(labels_folder)), Lifecycle())) as address:
        yield address


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    """The scores of DOCUMENTS, after the sigmoid."""
    return CrossEncoder(str(folder), device="cpu").predict([(QUERY, document) for document in DOCUMENTS])


def ask(address: str, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{address}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error_of(address: str, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{address}{path}", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_scores_are_those_of_cross_encoder(address: str, expected: np.ndarray) -> None:
    results = ask(address, "/v1/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    assert [result["index"] for result in results] == np.argsort(-expected).tolist()
    assert {result["index"]: result["relevance_score"] for result in results} == {
        index: pytest.approx(score, abs=1e-5) for index, score in enumerate(expected.tolist())
    }
    raw = ask(address, "/rerank", query=QUERY, documents=DOCUMENTS, raw_scores=True)["results"]
    assert [1 / (1 + np.exp(-result["relevance_score"])) for result in raw] == pytest.approx(
        [result["relevance_score"] for result in results], abs=1e-6
    )


def test_teis_request_gets_its_array(address: str, expected: np.ndarray) -> None:
    results = ask(address, "/rerank", query=QUERY, texts=DOCUMENTS)
    assert [result["index"] for result in results] == np.argsort(-expected).tolist()
    assert all(result.keys() == {"index", "score"} for result in results)
    results = ask(address, "/rerank", query=QUERY, texts=[*DOCUMENTS, LONG], truncate=True, return_text=True)
    assert all(result["text"] == [*DOCUMENTS, LONG][result["index"]] for result in results)
    assert error_of(address, "/rerank", query=QUERY, texts=[LONG])["param"] == "texts"
    assert error_of(address, "/rerank", query=QUERY, texts=["a"], documents=["a"])["param"] == "documents"


def test_a_document_that_is_too_long_loses_its_end_and_is_named(address: str, folder: Path) -> None:
    content = ask(address, "/v1/rerank", query=QUERY, documents=["w70", LONG], truncate="end")
    assert content["meta"]["warnings"] == ["documents.1 was too long and was cut"]
    scores = {result["index"]: result["relevance_score"] for result in content["results"]}
    peer = CrossEncoder(str(folder), device="cpu", max_length=64)
    assert scores[1] == pytest.approx(float(peer.predict([(QUERY, LONG)])[0]), abs=1e-5)
    short = ask(address, "/v2/rerank", query=QUERY, documents=["w60 w61 w62"], max_tokens_per_doc=2)
    (two,) = ask(address, "/v2/rerank", query=QUERY, documents=["w60 w61"])["results"]
    assert short["results"][0] == two
    assert short["meta"]["warnings"] == ["documents.0 was too long and was cut"]
    error = error_of(address, "/v1/rerank", query=LONG, documents=["a"], truncate="end")
    assert (error["code"], error["param"]) == ("context_length_exceeded", "query")


def test_scores_of_one_with_many_and_of_each_with_its_own(address: str, folder: Path, expected: np.ndarray) -> None:
    content = ask(address, "/score", text_1=QUERY, text_2=DOCUMENTS)
    assert [item["index"] for item in content["data"]] == [0, 1, 2, 3]
    assert [item["score"] for item in content["data"]] == pytest.approx(expected.tolist(), abs=1e-5)
    queries = ["w5", "w6 w7", "w8", "w9"]
    peer = CrossEncoder(str(folder), device="cpu")
    own = peer.predict(list(zip(queries, DOCUMENTS, strict=True)))
    data = ask(address, "/score", text_1=queries, text_2=DOCUMENTS)["data"]
    assert [item["score"] for item in data] == pytest.approx(own.tolist(), abs=1e-5)
    assert len(ask(address, "/score", text_1=["w5"], text_2="w6")["data"]) == 1


@torch.inference_mode()
def test_probabilities_of_labels(labels_address: str, labels_folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(labels_folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(labels_folder)
    rows = torch.cat([model(torch.tensor([tokenizer(text)["input_ids"]])).logits for text in DOCUMENTS])
    content = ask(labels_address, "/classify", input=DOCUMENTS)
    for item, row in zip(content["data"], rows, strict=True):
        assert item["probs"] == pytest.approx(row.softmax(0).tolist(), abs=1e-5)
        assert item["label"] == ["sad", "calm", "glad"][int(row.argmax())]
        assert item["num_classes"] == 3
    (raw,) = ask(labels_address, "/classify", input=DOCUMENTS[0], raw_scores=True)["data"]
    assert raw["probs"] == pytest.approx(rows[0].tolist(), abs=1e-5)
    assert content["usage"]["prompt_tokens"] == sum(len(tokenizer(text)["input_ids"]) for text in DOCUMENTS)


def test_a_classifier_of_several_labels_is_no_reranker(labels_address: str) -> None:
    for path, body in (
        ("/rerank", {"query": "w5", "documents": ["w6"]}),
        ("/score", {"text_1": "w5", "text_2": "w6"}),
    ):
        error = error_of(labels_address, path, **body)
        assert (error["param"], "3 labels" in error["message"]) == ("model", True)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/rerank", {"query": QUERY, "documents": ["w5"] * 10_000}, "documents"),
    ("/rerank", {"query": QUERY, "texts": []}, "texts"),
    ("/rerank", {"query": QUERY, "texts": [{"text": "w5"}]}, "texts"),
    ("/rerank", {"query": QUERY, "texts": ["w5"], "truncation_direction": "left"}, "truncation_direction"),
    ("/rerank", {"query": QUERY, "documents": ["w5"], "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ("/rerank", {"query": QUERY, "documents": ["w5"], "instruction": "w6"}, "instruction"),
    ("/rerank", {"query": QUERY, "documents": ["w5"], "truncate": True}, "truncate"),
    ("/rerank", {"query": QUERY, "documents": ["w5"], "top_n": 1.5}, "top_n"),
    ("/score", {"text_1": ["w5", "w6"], "text_2": ["w7"]}, "text_1"),
    ("/score", {"text_1": [], "text_2": ["w7"]}, "text_1"),
    ("/score", {"text_1": "w5", "text_2": []}, "text_2"),
    ("/score", {"text_1": "w5", "text_2": ["w7", ""]}, "text_2"),
    ("/score", {"text_1": "w5", "text_2": ["w7", None]}, "text_2"),
    ("/classify", {"input": []}, "input"),
    ("/classify", {"input": ["w5", ""]}, "input"),
    ("/classify", {"input": LONG}, "input"),
    ("/classify", {"input": ["w5", 3]}, "input"),
    ("/classify", {"text": "w5"}, "input"),
]


@pytest.mark.parametrize(("path", "body", "param"), BAD)
def test_a_bad_request_names_its_field(address: str, path: str, body: dict[str, Any], param: str) -> None:
    assert (error_of(address, path, **body)["param"] or "").split(".")[0] == param


@pytest.mark.parametrize("path", ["/rerank", "/score", "/classify"])
def test_lone_surrogates_are_no_text(address: str, path: str) -> None:
    text = '"\\ud800"'
    body = f'{{"query":{text},"documents":[{text}],"texts":[{text}]}}'
    answer = httpx.post(f"{address}{path}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize("top_n", [1, 4, 2**40, 10**30])
def test_top_n_of_any_size(address: str, top_n: int) -> None:
    content = ask(address, "/rerank", query=QUERY, documents=DOCUMENTS, top_n=top_n)
    assert len(content["results"]) == min(top_n, 4)
