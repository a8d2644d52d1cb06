"""Two ways to rank without a cross-encoder, BM25 and cosine, and the two figures by which rankings are compared.

Used by `train`. Knows arrays and words, no model.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009, §3; k1 1.2, b 0.75.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")
_K1, _B = 1.2, 0.75

Scores = NDArray[np.float32]


class Bm25:
    """An index of passages by their words."""

    def __init__(self, passages: Sequence[str]) -> None:
        counts = [Counter(_words(passage)) for passage in passages]
        lengths = np.array([sum(count.values()) for count in counts], np.float32)
        self._norms = _K1 * (1 - _B + _B * lengths / max(float(lengths.mean()), 1.0))
        self._postings: dict[str, tuple[list[int], list[int]]] = {}
        for place, count in enumerate(counts):
            for word, times in count.items():
                places, all_times = self._postings.setdefault(word, ([], []))
                places.append(place)
                all_times.append(times)

    def scores(self, query: str) -> Scores:
        """One score for each passage, [passages]."""
        num_passages = len(self._norms)
        scores = np.zeros(num_passages, np.float32)
        for word in set(_words(query)):
            if word not in self._postings:
                continue
            places, times = (np.array(values) for values in self._postings[word])
            weight = math.log(1 + (num_passages - len(places) + 0.5) / (len(places) + 0.5))
            scores[places] += weight * times * (_K1 + 1) / (times + self._norms[places])
        return scores


def top(scores: Scores, count: int) -> list[int]:
    """Places of the `count` best, best first, ties by place."""
    order: list[int] = np.argsort(-scores, kind="stable")[:count].tolist()
    return order


def quality(ranks: Sequence[int | None]) -> dict[str, float]:
    """nDCG@10 and MRR of rankings with one right answer each.

    Args:
        ranks: place of the right answer, from 0; None where it was not among the candidates.
    """
    found = [rank for rank in ranks if rank is not None]
    gains = [1 / math.log2(rank + 2) for rank in found if rank < 10]
    reciprocals = [1 / (rank + 1) for rank in found]
    return {"ndcg@10": sum(gains) / len(ranks), "mrr": sum(reciprocals) / len(ranks)}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
