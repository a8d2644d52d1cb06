"""The embedder on the embedded model, on a real socket, once for all tests of this folder.

The reference is sentence-transformers on the same folder.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from sentence_transformers import SentenceTransformer

from services.embedder.app import make_embedder_app
from services.embedder.settings import EmbedderSettings
from shared.http.lifecycle import Lifecycle
from tests.fakes.ready_service import ready_service

MODEL = "all-minilm-l6-v2"


@pytest.fixture(scope="session")
def address(models_dir: Path) -> Iterator[str]:
    """Where the embedder listens."""
    settings = EmbedderSettings(model=str(models_dir / MODEL), num_threads=2)
    with ready_service(make_embedder_app(settings, Lifecycle())) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[OpenAI]:
    """The official client."""
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def peer(models_dir: Path) -> SentenceTransformer:
    """The reference."""
    return SentenceTransformer(str(models_dir / MODEL), device="cpu")
