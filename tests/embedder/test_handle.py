"""The way from a socket to the model and back when something goes wrong, with a fake model that can be held and killed.

No embedded model is needed, and nothing here depends on how fast the machine is.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from services.embedder.api import embeddings_router
from services.embedder.metrics import EmbedderMetrics
from services.embedder.settings import EmbedderSettings
from shared.http.app import make_app
from shared.http.encoder_handle import EncoderHandle
from shared.http.lifecycle import Lifecycle
from shared.text.preparer import TextPreparer
from shared.text.prompts import Prompts
from shared.text.tokenizer import Tokenizer
from shared.text.vector_shape import VectorShape
from tests.fakes.ready_service import ready_service
from tests.shared.batching.fake_model import DEADLY, POISON, FakeModel
from tests.shared.modeling.tiny_bert import save_tokenizer


class FakeEncoder(FakeModel):
    """A fake model with a real tokenizer."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        save_tokenizer(folder)
        self.preparer = TextPreparer(Tokenizer(folder), 64, 1000, False, Prompts({}), VectorShape(2, (), False))


@dataclass
class Served:
    model: FakeEncoder
    lifecycle: Lifecycle
    address: str
    threads: list[threading.Thread] = field(default_factory=list)

    def post(self, body: dict[str, object], timeout: float = 30) -> httpx.Response:
        return httpx.post(f"{self.address}/v1/embeddings", json=body, timeout=timeout)

    def post_aside(self, body: dict[str, object]) -> list[httpx.Response]:
        """Post from a thread; the answer appears in the list."""
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(self.post(body)))
        thread.start()
        self.threads.append(thread)
        return answers

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.address}/metrics").text.splitlines()
        return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"trivium_embedder_{name} ")))


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    model, lifecycle = FakeEncoder(tmp_path), Lifecycle()
    with ready_service(make_fake_app(model, lifecycle)) as address:
        served = Served(model, lifecycle, address)
        yield served
        model.gate.set()
        for thread in served.threads:
            thread.join(30)


def make_fake_app(model: FakeEncoder, lifecycle: Lifecycle) -> FastAPI:
    settings = EmbedderSettings(model="fake", max_concurrent_requests=3, max_queue_tokens=100)
    metrics = EmbedderMetrics()
    handle = EncoderHandle(settings, "embed", lambda: model, metrics.batches, lifecycle)
    routers = [embeddings_router(handle), handle.models_router()]
    return make_app(
        settings, lifecycle, metrics.base, readiness=handle.readiness, lifespan=handle.lifespan, routers=routers
    )


def hold(served: Served) -> list[httpx.Response]:
    """A request inside the forward."""
    served.model.is_inside.clear()
    served.model.gate.clear()
    answers = served.post_aside({"input": [7]})
    until(served.model.is_inside.is_set)
    return answers


def test_work_of_a_client_that_left_is_dropped(served: Served) -> None:
    held = hold(served)
    with pytest.raises(httpx.ReadTimeout):
        served.post({"input": [[8] * 9]}, timeout=0.5)
    until(lambda: served.metric("queued_rows") == 0)
    served.model.gate.set()
    until(lambda: len(held) == 1)
    assert held[0].status_code == 200
    assert served.post({"input": [9]}).status_code == 200
    assert served.model.batches == [[[7]], [[9]]]


def test_work_past_its_deadline_is_dropped(served: Served) -> None:
    hold(served)
    soon = str(int(time.time() * 1000) + 200)
    late = httpx.post(
        f"{served.address}/v1/embeddings", json={"input": [[8] * 9]}, headers={"X-Request-Deadline": soon}, timeout=30
    )
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert served.metric("queued_rows") == 0
    served.model.gate.set()
    assert served.post({"input": [9]}).status_code == 200
    assert served.model.batches == [[[7]], [[9]]]


def test_past_the_limits_clients_are_told_to_come_back(served: Served) -> None:
    hold(served)
    served.post_aside({"input": [[8] * 40]})
    until(lambda: served.metric("queued_tokens") == 40)
    full = served.post({"input": [[8] * 61]})
    assert (full.status_code, full.json()["error"]["code"]) == (429, "overloaded")
    assert int(full.headers["retry-after"]) >= 1
    served.post_aside({"input": [[8] * 4]})
    until(lambda: served.metric("requests_inside") == 3)
    crowded = served.post({"input": [[8]]})
    assert (crowded.status_code, crowded.json()["error"]["code"]) == (429, "overloaded")
    served.model.gate.set()
    until(lambda: served.metric("requests_inside") == 0)
    assert served.post({"input": [8]}).status_code == 200


def test_a_failed_forward_is_a_500_and_the_next_works(served: Served) -> None:
    failed = served.post({"input": [POISON]})
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal")
    assert "poisoned" not in failed.text
    assert served.post({"input": [5]}).status_code == 200


def test_a_dead_model_turns_readiness_off_and_ends_the_service(served: Served) -> None:
    dead = served.post({"input": [DEADLY]})
    assert (dead.status_code, dead.json()["error"]["code"]) == (503, "engine_dead")
    ready = httpx.get(f"{served.address}/ready")
    assert (ready.status_code, ready.json()) == (503, {"ready": False, "parts": {"model": "failed"}})
    assert served.post({"input": [5]}).status_code == 503
    assert served.lifecycle.failure is not None
