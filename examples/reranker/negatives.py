"""Passages that look like a query's answer and are none, which is what a reranker has to tell apart.

Called by `train`. They come from the embedder, from BM25 and from the same document; what may well be right is left out.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.reranker.pairs import Pair
from examples.reranker.ranking import Bm25

_TOO_ALIKE = 0.95
_BATCH = 256


@dataclass(frozen=True)
class Counts:
    """How many passages of each origin a query gets.

    Args:
        skipped: the embedder's best, which are left out: among them are passages that answer the query as well.
    """

    by_cosine: int = 16
    by_words: int = 8
    of_document: int = 8
    skipped: int = 1


def hard_negatives(pairs: Sequence[Pair], queries: Tensor, passages: Tensor, counts: Counts) -> Tensor:
    """For each pair places of wrong passages, [pairs, sum of counts] int64 on the CPU; chance fills what an origin lacks.

    Args:
        queries, passages: their unit vectors, [pairs, H].
    """
    device = passages.device
    sections = _numbers([pair.section for pair in pairs]).to(device)
    documents = _numbers([pair.document for pair in pairs]).to(device)
    bm25 = Bm25([pair.passage for pair in pairs], str(device))
    chance = torch.Generator().manual_seed(0)
    rows = []
    for start in range(0, len(pairs), _BATCH):
        places = torch.arange(start, min(start + _BATCH, len(pairs)), device=device)
        cosines = queries[places] @ passages.T
        is_barred = (sections[places][:, None] == sections) | (passages[places] @ passages.T > _TOO_ALIKE)
        words = bm25.scores([pair.query for pair in pairs[start : start + _BATCH]])
        is_elsewhere = documents[places][:, None] != documents
        found = [
            _best(cosines, is_barred, counts.by_cosine + counts.skipped)[:, counts.skipped :],
            _best(words, is_barred | (words <= 0), counts.by_words),
            _best(cosines, is_barred | is_elsewhere, counts.of_document),
        ]
        rows.append(torch.cat(found, dim=1).cpu())
    negatives = torch.cat(rows)
    anywhere = torch.randint(len(pairs), negatives.shape, generator=chance)
    return torch.where(negatives < 0, anywhere, negatives)


def _best(scores: Tensor, is_barred: Tensor, count: int) -> Tensor:
    """[queries, count] places; -1 where too few are allowed."""
    count_there = min(count, scores.shape[1])
    best = scores.masked_fill(is_barred, -torch.inf).topk(count_there, dim=1)
    places = best.indices.masked_fill(best.values == -torch.inf, -1)
    return torch.nn.functional.pad(places, (0, count - count_there), value=-1)


def _numbers(names: Sequence[str]) -> Tensor:
    numbers: defaultdict[str, int] = defaultdict(lambda: len(numbers))
    return torch.tensor([numbers[name] for name in names])
