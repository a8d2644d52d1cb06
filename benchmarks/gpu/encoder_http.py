"""The clients of the encoder benchmark: lists of ids to `/v1/embeddings`, a query with documents to `/rerank`.

Bodies are made once, by the first call; answers are read to the last byte and decoded.
"""

import base64
import functools
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np

NUM_CLIENTS = 16
INPUTS_OF_A_REQUEST = 64


def embed_over_http(url: str, sequences: Sequence[list[int]]) -> np.ndarray:
    """Vectors in order; requests of 64 sequences from 16 clients."""
    bodies = _bodies(tuple(map(tuple, sequences)))
    with httpx.Client(base_url=url, timeout=120) as client, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        return np.concatenate(list(pool.map(functools.partial(_embed, client), bodies)))


@functools.cache
def _bodies(sequences: tuple[tuple[int, ...], ...]) -> list[bytes]:
    parts = [sequences[i : i + INPUTS_OF_A_REQUEST] for i in range(0, len(sequences), INPUTS_OF_A_REQUEST)]
    return [json.dumps({"input": part, "encoding_format": "base64"}).encode() for part in parts]


def _embed(client: httpx.Client, body: bytes) -> np.ndarray:
    answer = client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    entries = answer.raise_for_status().json()["data"]
    return np.stack([np.frombuffer(base64.b64decode(entry["embedding"]), np.float32) for entry in entries])


def rerank_over_http(url: str, query: str, documents: Sequence[str]) -> None:
    """One request."""
    body = {"query": query, "documents": list(documents)}
    answer = httpx.post(f"{url}/rerank", json=body, timeout=120).raise_for_status()
    if len(answer.json()["results"]) != len(documents):
        raise RuntimeError("an answer does not have all documents")
