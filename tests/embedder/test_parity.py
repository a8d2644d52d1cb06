"""The embedded model's vectors against sentence-transformers', through HTTP and the official client.

Numbers are a contract: cosine at least 0.99999, alone or in any company.
"""

import base64
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from openai import OpenAI
from sentence_transformers import SentenceTransformer

from tests.embedder.conftest import MODEL
from tests.embedder.texts import mixed_texts

pytestmark = pytest.mark.models


def embed(client: OpenAI, texts: list[str]) -> np.ndarray:
    answer = client.embeddings.create(model=MODEL, input=texts)
    assert [item.index for item in answer.data] == list(range(len(texts)))
    return np.array([item.embedding for item in answer.data])


def test_equal_to_sentence_transformers(client: OpenAI, peer: SentenceTransformer) -> None:
    texts = mixed_texts()
    ours, expected = embed(client, texts), peer.encode(texts)
    assert (ours * expected).sum(axis=1).min() >= 0.99999
    assert np.abs(ours - expected).max() <= 1e-5
    assert np.abs(np.linalg.norm(ours, axis=1) - 1).max() <= 1e-5


def test_alone_and_in_company_are_the_same(client: OpenAI) -> None:
    texts = mixed_texts(60, seed=9)
    together = embed(client, texts)
    with ThreadPoolExecutor(8) as pool:
        alone = np.concatenate(list(pool.map(lambda text: embed(client, [text]), texts)))
    assert np.abs(alone - together).max() <= 1e-6


def test_token_ids_give_what_their_text_gives(client: OpenAI, peer: SentenceTransformer) -> None:
    text = "How deep is the ocean?"
    ids = peer.tokenizer(text)["input_ids"]
    by_text = client.embeddings.create(model=MODEL, input=text)
    by_ids = client.embeddings.create(model=MODEL, input=ids)
    by_lists = client.embeddings.create(model=MODEL, input=[ids, ids[:3]])
    assert by_text.data[0].embedding == pytest.approx(by_ids.data[0].embedding, abs=1e-6)
    assert by_text.data[0].embedding == pytest.approx(by_lists.data[0].embedding, abs=1e-6)
    assert by_text.usage.prompt_tokens == by_ids.usage.total_tokens == len(ids)
    assert len(by_lists.data) == 2


def test_both_encodings_are_the_same_numbers(address: str, client: OpenAI) -> None:
    floats = client.embeddings.create(model=MODEL, input="a text", encoding_format="float").data[0].embedding
    body = {"input": "a text", "encoding_format": "base64"}
    encoded = httpx.post(f"{address}/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == np.array(floats, np.float32).tolist()


def test_a_cut_text_is_what_sentence_transformers_cuts(address: str, peer: SentenceTransformer) -> None:
    texts = ["short", " ".join(f"word{number}" for number in range(300))]
    body = {"input": texts, "truncate": "end"}
    content = httpx.post(f"{address}/v1/embeddings", json=body, timeout=60).json()
    assert content["truncated"] == [1]
    assert content["usage"]["prompt_tokens"] == 3 + 256
    ours = np.array([item["embedding"] for item in content["data"]])
    assert np.abs(ours - peer.encode(texts)).max() <= 1e-5


def test_an_instruction_stands_before_the_text(client: OpenAI, peer: SentenceTransformer) -> None:
    answer = client.embeddings.create(model=MODEL, input=["a text"], extra_body={"instruction": "query: "})
    assert answer.data[0].embedding == pytest.approx(peer.encode("a text", prompt="query: ").tolist(), abs=1e-5)
