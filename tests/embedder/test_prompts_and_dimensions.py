"""A folder with prompts and Matryoshka vectors, served: the prompt that a request chooses and the vectors cut to its length.

The reference is sentence-transformers on the same folder, which it saved itself.
"""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from services.embedder.app import make_embedder_app
from services.embedder.settings import EmbedderSettings
from shared.http.lifecycle import Lifecycle
from tests.fakes.ready_service import ready_service
from tests.shared.modeling.tiny_bert import save_tokenizer
from tests.shared.modeling.tiny_encoders import save_tiny_encoder

PROMPTS = {"query": "w20 w21 ", "document": "w30 ", "code": "w40 "}
TEXTS = ["w50 w51 w52", "w60"]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    folder = tmp_path_factory.mktemp("raw")
    save_tokenizer(save_tiny_encoder(folder, "qwen3", is_matryoshka=True))
    modules = [Transformer(str(folder)), Pooling(32, pooling_mode="lasttoken"), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS)


@pytest.fixture(scope="module")
def address(peer: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("saved")
    peer.save(str(folder))
    with ready_service(make_embedder_app(EmbedderSettings(model=str(folder)), Lifecycle())) as address:
        yield address


def embed(address: str, **fields: Any) -> np.ndarray:
    answer = httpx.post(f"{address}/v1/embeddings", json={"input": TEXTS, "encoding_format": "base64", **fields})
    assert answer.status_code == 200, answer.text
    return np.array([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer.json()["data"]])


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, None),
        ({"input_type": "query"}, "query"),
        ({"input_type": "search_query"}, "query"),
        ({"input_type": "document"}, "document"),
        ({"prompt_name": "code"}, "code"),
    ],
)
def test_the_prompt_that_is_asked_for(
    address: str, peer: SentenceTransformer, fields: dict[str, str], name: str | None
) -> None:
    expected = peer.encode(TEXTS, prompt_name=name)
    assert np.abs(embed(address, **fields) - expected).max() <= 1e-5


def test_cut_vectors_are_at_unit_length_again(address: str, peer: SentenceTransformer) -> None:
    expected = peer.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    assert np.abs(embed(address, dimensions=5) - expected).max() <= 1e-5


def test_more_dimensions_than_there_are(address: str) -> None:
    answer = httpx.post(f"{address}/v1/embeddings", json={"input": "w7", "dimensions": 33})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dimensions")
