"""The search side of the example: embeds passages, finds the nearest to a question, and reranks them.

Called by __main__ with an openai client. Vectors stay in plain lists: a few thousand passages need no vector database.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from openai import BaseModel, OpenAI

from examples.rag.collection import Passage

EMBEDDING_BATCH = 32
NUM_RETRIEVED = 12
NUM_RERANKED = 3

Vector = Sequence[float]


@dataclass(frozen=True)
class Hit:
    """A passage found for a question. `search` fills the cosine, `rerank` the relevance."""

    passage: Passage
    cosine: float
    relevance: float | None = None


class _RerankResult(BaseModel):
    index: int
    relevance_score: float


class _RerankAnswer(BaseModel):
    results: list[_RerankResult]


def embed(client: OpenAI, model: str, texts: Sequence[str]) -> list[Vector]:
    """Embed texts in batches; returns one unit vector per text, in order.

    The openai client asks for base64 by itself: a quarter of the bytes of decimal numbers.
    """
    vectors: list[Vector] = []
    for start in range(0, len(texts), EMBEDDING_BATCH):
        batch = list(texts[start : start + EMBEDDING_BATCH])
        data = client.embeddings.create(model=model, input=batch).data
        vectors.extend(_to_unit_length(item.embedding) for item in sorted(data, key=lambda item: item.index))
    return vectors


def search(
    query: Vector, vectors: Sequence[Vector], passages: Sequence[Passage], top: int = NUM_RETRIEVED
) -> list[Hit]:
    """The `top` passages by cosine, best first.

    Semantics: cosine(i) = sum(query * vectors[i]), all vectors being of unit length.
    """
    hits = [Hit(passage, sum(map(mul, query, vector))) for passage, vector in zip(passages, vectors, strict=True)]
    return sorted(hits, key=lambda hit: hit.cosine, reverse=True)[:top]


def rerank(client: OpenAI, model: str, question: str, hits: Sequence[Hit], top: int = NUM_RERANKED) -> list[Hit]:
    """The `top` hits by the reranker's score, best first.

    Reranking is not part of OpenAI's API, so this uses the client's method for other paths.
    """
    body = {"model": model, "query": question, "documents": [hit.passage.titled_text for hit in hits], "top_n": top}
    answer = client.post("/rerank", cast_to=_RerankAnswer, body=body)
    best = sorted(answer.results, key=lambda result: result.relevance_score, reverse=True)[:top]
    return [Hit(hits[r.index].passage, hits[r.index].cosine, r.relevance_score) for r in best]


def _to_unit_length(vector: Vector) -> Vector:
    norm = math.sqrt(sum(x * x for x in vector))
    return [x / norm for x in vector] if norm else list(vector)
