"""How well held-out queries find their passages: by cosine, by BM25 and by a cross-encoder, over the same candidates.

Used by `train`. The candidates of a query are the best by cosine and the best by BM25 among all held-out passages; a passage that
is in neither counts as not found, for all three alike.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from examples.reranker.models import Embedder
from examples.reranker.pairs import Pair
from examples.reranker.ranking import Bm25, Scores, quality, top

ScorePassages = Callable[[str, Sequence[str]], Scores]


class Benchmark:
    """Held-out pairs with their candidates, found once.

    Args:
        num_candidates: best passages of each of the two methods.
    """

    def __init__(self, pairs: Sequence[Pair], embedder: Embedder, num_candidates: int) -> None:
        self._pairs = pairs
        passages = [pair.passage for pair in pairs]
        self._cosines = (embedder.vectors([pair.query for pair in pairs]) @ embedder.vectors(passages).T).numpy()
        bm25 = Bm25(passages)
        self._bm25 = [bm25.scores(pair.query) for pair in pairs]
        self._candidates = [
            sorted({*top(cosines, num_candidates), *top(words, num_candidates)})
            for cosines, words in zip(self._cosines, self._bm25, strict=True)
        ]

    def baselines(self) -> Mapping[str, dict[str, float]]:
        """The figures of cosine and BM25."""
        return {
            "cosine": quality([self._rank(place, self._cosines[place]) for place in range(len(self._pairs))]),
            "bm25": quality([self._rank(place, self._bm25[place]) for place in range(len(self._pairs))]),
        }

    def figures(self, score: ScorePassages) -> dict[str, float]:
        """The figures of `score`, which sees a query and its candidates."""
        ranks = []
        for place, pair in enumerate(self._pairs):
            candidates = self._candidates[place]
            scores = score(pair.query, [self._pairs[candidate].passage for candidate in candidates])
            ranks.append(_rank_of(place, candidates, scores))
        return quality(ranks)

    def _rank(self, place: int, scores: Scores) -> int | None:
        candidates = self._candidates[place]
        return _rank_of(place, candidates, scores[candidates])


def _rank_of(place: int, candidates: Sequence[int], scores: Scores) -> int | None:
    if place not in candidates:
        return None
    return top(scores, len(candidates)).index(candidates.index(place))


def hard_negatives(pairs: Sequence[Pair], embedder: Embedder, count: int, skip: int) -> list[list[int]]:
    """For each pair the passages that the embedder takes for its answer, from the `skip`-th best on, its own left out.

    The very best are left out too: among them are passages that answer the query as well.
    """
    queries = embedder.vectors([pair.query for pair in pairs])
    passages = embedder.vectors([pair.passage for pair in pairs])
    found = []
    for start in range(0, len(pairs), 512):
        best = torch.topk(queries[start : start + 512] @ passages.T, min(skip + count + 1, len(pairs)), dim=1).indices
        for offset, places in enumerate(best.tolist()):
            others = [place for place in places if place != start + offset]
            found.append(others[skip : skip + count])
    return found
