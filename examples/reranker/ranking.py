"""Ranking by words, BM25, and the two figures by which rankings are compared.

Used by `measure` and `negatives`. Knows tensors and words, no model.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009, §3; k1 1.2, b 0.75.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = re.compile(r"\w+")
_K1, _B = 1.2, 0.75


class Bm25:
    """An index of passages by their words: a sparse matrix with the weight of each word in each passage, [passages, words]."""

    def __init__(self, passages: Sequence[str], device: str = "cpu") -> None:
        counts = [Counter(_words(passage)) for passage in passages]
        self._words: dict[str, int] = {}
        # Three flat lists rather than one of triples: there are millions of entries.
        words = torch.tensor([self._words.setdefault(word, len(self._words)) for count in counts for word in count])
        times = torch.tensor([times for count in counts for times in count.values()])
        places = torch.arange(len(counts)).repeat_interleave(torch.tensor([len(count) for count in counts]))
        lengths = torch.tensor([sum(count.values()) for count in counts], dtype=torch.float32)
        norms = _K1 * (1 - _B + _B * lengths / lengths.mean().clamp(min=1.0))
        passages_with = torch.bincount(words).float()
        rarity = torch.log(1 + (len(passages) - passages_with + 0.5) / (passages_with + 0.5))
        weights = rarity[words] * times * (_K1 + 1) / (times + norms[places])
        size = (len(passages), len(self._words))
        entries = torch.sparse_coo_tensor(torch.stack([places, words]), weights, size, check_invariants=False)
        self._weights = entries.coalesce().to(device)

    def scores(self, queries: Sequence[str]) -> Tensor:
        """[queries, passages] float32, on the index's device."""
        known = [[self._words[word] for word in set(_words(query)) if word in self._words] for query in queries]
        columns = torch.arange(len(known)).repeat_interleave(torch.tensor([len(words) for words in known]))
        asked = torch.zeros(len(self._words), len(queries), device=self._weights.device)
        asked[torch.tensor([word for words in known for word in words], dtype=torch.int64), columns] = 1.0
        return torch.sparse.mm(self._weights, asked).T


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
