"""Clients of other projects against a gateway with an embedder and a reranker behind it: they read what a plain request reads.

The clients live in `.run/clients`, which `make test-clients` makes; without it these tests are skipped.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from services.embedder.app import make_embedder_app
from services.embedder.settings import EmbedderSettings
from services.gateway.app import build_app
from services.gateway.settings import GatewaySettings
from services.reranker.app import make_reranker_app
from services.reranker.settings import RerankerSettings
from shared.http.lifecycle import Lifecycle
from tests.fakes.live_server import LiveServer, free_port, wait_until
from tests.fakes.ready_service import ready_service

CLIENTS = Path(".run/clients").absolute()
EMBEDDER, RERANKER = "all-minilm-l6-v2", "minilm-reranker"
ASKED = {
    "query": "What is the capital of France?",
    "documents": ["Berlin is in Germany.", "Paris is the capital of France.", "A recipe for bread."],
}
PYTHON_CLIENTS = ["cohere v1", "cohere v2", "langchain-openai", "langchain-cohere", "llama-index-openai-like"]
RERANK_CLIENTS = ["cohere v1", "cohere v2", "langchain-cohere", "llama-index-cohere", "llama-index-jina"]

pytestmark = [pytest.mark.models, pytest.mark.e2e]


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter that finds the clients."""
    python = CLIENTS / "bin" / "python"
    if not python.exists():
        pytest.skip("the clients are not installed: run make test-clients")
    return python


@pytest.fixture(scope="module")
def url(python: Path, models_dir: Path) -> Iterator[str]:
    """Where the gateway listens; its generator is not there."""
    with ExitStack() as stack:
        embedder = EmbedderSettings(model=str(models_dir / EMBEDDER), num_threads=1)
        reranker = RerankerSettings(model=str(models_dir / RERANKER), num_threads=1)
        settings = GatewaySettings(
            generator_url=[f"http://127.0.0.1:{free_port()}"],
            embedder_url=[stack.enter_context(ready_service(make_embedder_app(embedder, Lifecycle())))],
            reranker_url=[stack.enter_context(ready_service(make_reranker_app(reranker, Lifecycle())))],
            probe_interval_s=0.05,
        )
        gateway = stack.enter_context(LiveServer(build_app(settings, Lifecycle())))
        body = {"input": "a"}
        wait_until(lambda: httpx.post(f"{gateway.url}/v1/embeddings", json=body).is_success, "the gateway sees it")
        yield gateway.url


@pytest.fixture(scope="module")
def vectors(url: str) -> Any:
    """What a plain request gets."""
    answer = httpx.post(f"{url}/v1/embeddings", json={"input": ASKED["documents"]}).json()
    return np.array([item["embedding"] for item in answer["data"]], np.float32)


@pytest.fixture(scope="module")
def told(python: Path, url: str) -> Any:
    """What the Python clients read."""
    return talk([str(python), str(Path(__file__).with_name("talk.py")), url])


def talk(command: list[str]) -> Any:
    done = subprocess.run(command, input=json.dumps(ASKED), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_vectors(told: Any, vectors: Any, client: str) -> None:
    np.testing.assert_array_equal(np.array(told["embeddings"][client], np.float32), vectors)


@pytest.mark.parametrize("client", RERANK_CLIENTS)
def test_rankings(url: str, told: Any, client: str) -> None:
    plain = httpx.post(f"{url}/v2/rerank", json=ASKED).json()["results"]
    expected = [[ASKED["documents"][result["index"]], result["relevance_score"]] for result in plain]
    assert told["rankings"][client] == expected
    assert expected[0][0] == "Paris is the capital of France."


def test_the_client_for_node(url: str, vectors: Any) -> None:
    folder = CLIENTS / "node"
    if not folder.exists():
        pytest.skip("OpenAI's client for Node is not installed: run make test-clients where npm is")
    answer = talk(["node", str(Path(__file__).with_name("talk.mjs")), url, str(folder)])
    np.testing.assert_array_equal(np.array(answer["embeddings"], np.float32), vectors)
    assert answer["refused"] == {"name": "BadRequestError", "status": 400, "param": "input"}
