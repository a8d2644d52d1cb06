"""How well queries find their passages: by cosine, by BM25 and by a cross-encoder, over the same candidates.

Used by `train`. The candidates of a query are the best by cosine and the best by BM25 among all passages; an answer that is in
neither counts as not found, for all three alike.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.reranker.models import CrossEncoder, Embedder
from examples.reranker.pairs import Pair
from examples.reranker.ranking import Bm25, quality

Figures = Mapping[str, dict[str, float]]


@dataclass(frozen=True)
class Asked:
    """A query that is measured.

    Args:
        answer: the right passage's place.
        also_right: places of passages that may answer it as well; they are no candidates.
        group: the row of the table that it counts in.
    """

    query: str
    answer: int
    also_right: frozenset[int]
    group: str


class Benchmark:
    """Queries with their candidates, found once.

    Args:
        num_candidates: best passages of each of the two methods.
    """

    def __init__(
        self, asked: Sequence[Asked], passages: Sequence[str], embedder: Embedder, num_candidates: int
    ) -> None:
        self._asked = asked
        self._passages = passages
        cosines = (embedder.vectors([one.query for one in asked]) @ embedder.vectors(passages).T).cpu()
        words = Bm25(passages).scores([one.query for one in asked])
        self._candidates = [self._found(place, cosines, words, num_candidates) for place in range(len(asked))]
        self._known = {
            "cosine": [cosines[place, found] for place, found in enumerate(self._candidates)],
            "bm25": [words[place, found] for place, found in enumerate(self._candidates)],
        }

    def baselines(self) -> Mapping[str, Figures]:
        """The figures of cosine and BM25, by group."""
        return {name: self._figures(scores) for name, scores in self._known.items()}

    def figures(self, model: CrossEncoder) -> Figures:
        """The figures of `model`, which sees each query with its candidates, by group."""
        queries = model.table([one.query for one in self._asked], are_queries=True)
        passages = model.table(self._passages, are_queries=False)
        sizes = [len(found) for found in self._candidates]
        asking = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        scores = model.scores(queries, passages, torch.stack([asking, torch.cat(self._candidates)], dim=1))
        return self._figures(scores.split(sizes))

    def _found(self, place: int, cosines: Tensor, words: Tensor, count: int) -> Tensor:
        asked = self._asked[place]
        best = {*_top(cosines[place], count), *_top(words[place], count)}
        return torch.tensor(sorted(best - asked.also_right))

    def _figures(self, scores: Sequence[Tensor]) -> Figures:
        ranks: defaultdict[str, list[int | None]] = defaultdict(list)
        for asked, found, row in zip(self._asked, self._candidates, scores, strict=True):
            rank = _rank_of(asked.answer, found, row)
            ranks[asked.group].append(rank)
            ranks["all"].append(rank)
        return {group: quality(ranks[group]) for group in sorted(ranks)}


def asked_of_pairs(pairs: Sequence[Pair], places: Sequence[int]) -> list[Asked]:
    """The queries of the pairs at `places`, whose passages are looked for among those of all `pairs`."""
    by_section: defaultdict[str, set[int]] = defaultdict(set)
    for place, pair in enumerate(pairs):
        by_section[pair.section].add(place)
    return [
        Asked(pairs[place].query, place, frozenset(by_section[pairs[place].section] - {place}), pairs[place].source)
        for place in places
    ]


def _top(scores: Tensor, count: int) -> list[int]:
    """Places of the `count` best, best first, ties by place."""
    order: list[int] = scores.sort(descending=True, stable=True).indices[:count].tolist()
    return order


def _rank_of(answer: int, candidates: Tensor, scores: Tensor) -> int | None:
    places = candidates.tolist()
    return _top(scores, len(places)).index(places.index(answer)) if answer in places else None
