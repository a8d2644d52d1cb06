"""Many clients at once, some of which leave: each that stays gets one answer, and it is the answer to its own texts."""

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from services.embedder.app import make_embedder_app
from services.embedder.settings import EmbedderSettings
from shared.http.lifecycle import Lifecycle
from tests.fakes.live_server import wait_until
from tests.fakes.ready_service import ready_service
from tests.shared.modeling.tiny_bert import VOCAB_SIZE, save_tiny_bert, save_tokenizer

NUM_CLIENTS = 8
NUM_REQUESTS = 30
MAX_LEAVE_S = 0.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_bert(tmp_path_factory.mktemp("many"))
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    settings = EmbedderSettings(
        model=str(folder), pooling="mean", normalize=False, num_threads=1, max_num_batched_tokens=128
    )
    with ready_service(make_embedder_app(settings, Lifecycle())) as address:
        yield address


class Client:
    """One client's requests, and what it was told."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(number)
        self.requests = [[self._text() for _ in range(self.rng.randint(1, 8))] for _ in range(NUM_REQUESTS)]
        self.answers: dict[int, list[list[float]]] = {}
        self.num_left = 0
        self.problems: list[str] = []

    def _text(self) -> str:
        """Long and short ones; of twenty words and more, so many are possible that no two clients have the same."""
        length = self.rng.choice([1, 3, 20, 40])
        return " ".join(f"w{self.rng.randrange(4, VOCAB_SIZE)}" for _ in range(length))

    def run(self, address: str) -> None:
        with httpx.Client(base_url=address) as client:
            for index, texts in enumerate(self.requests):
                leaves = self.rng.random() < 0.25
                try:
                    timeout = self.rng.random() * MAX_LEAVE_S if leaves else 60
                    answer = client.post("/v1/embeddings", json={"input": texts}, timeout=timeout)
                except httpx.TimeoutException:
                    self.num_left += 1
                    continue
                if answer.status_code != 200:
                    self.problems.append(answer.text)
                    continue
                self.answers[index] = [item["embedding"] for item in json.loads(answer.content)["data"]]


def test_everyone_gets_the_vectors_of_their_own_texts(address: str, folder: Path) -> None:
    clients = [Client(number) for number in range(NUM_CLIENTS)]
    threads = [threading.Thread(target=client.run, args=(address,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    texts = sorted({text for client in clients for request in client.requests for text in request})
    vectors = SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)
    expected = dict(zip(texts, vectors, strict=True))
    assert sum(client.num_left for client in clients) > 0, "nobody left: the test shows less than it says"
    for client in clients:
        assert client.problems == []
        assert len(client.answers) + client.num_left == NUM_REQUESTS
        for index, vectors in client.answers.items():
            wanted = np.stack([expected[text] for text in client.requests[index]])
            np.testing.assert_allclose(np.array(vectors), wanted, atol=1e-4 * np.abs(wanted).max())
    wait_until(lambda: queued(address) == 0, "what nobody waits for leaves the queue")
    assert httpx.post(f"{address}/v1/embeddings", json={"input": "w7"}).status_code == 200


def queued(address: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith("trivium_embedder_queued_rows ")))
