"""What the reranker learns from and is measured on: pairs of a query and the passage that answers it, and how they are divided.

Made by `corpus`, read by `train` and `measure`. Kept as JSON lines, one pair a line, compressed by xz.
"""

import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A query and the passage that answers it.

    Args:
        document: the file both come from; its first part is the name of the source.
        section: what else of the corpus belongs to the same part of it, and so may answer the query as well.
        kind: how the query was made.
    """

    query: str
    passage: str
    document: str
    section: str
    kind: str

    @property
    def source(self) -> str:
        return self.document.partition("/")[0]


@dataclass(frozen=True)
class Split:
    """Pairs to learn from and pairs to measure on; no document is in both."""

    train: list[Pair]
    held_out: list[Pair]


def without_repeats(pairs: Iterable[Pair]) -> list[Pair]:
    """Those whose query and whose passage occur once: of the others no answer is the right one."""
    pairs = list(pairs)
    queries = Counter(pair.query.lower() for pair in pairs)
    passages = Counter(pair.passage for pair in pairs)
    return [pair for pair in pairs if queries[pair.query.lower()] == 1 and passages[pair.passage] == 1]


def split_pairs(pairs: Sequence[Pair], held_out_share: float) -> Split:
    """Divide by a hash of the document's name, so that the same document always falls on the same side."""
    split = Split([], [])
    for pair in pairs:
        is_held_out = _fraction(_divided_by(pair)) < held_out_share
        (split.held_out if is_held_out else split.train).append(pair)
    return split


def _divided_by(pair: Pair) -> str:
    # A dictionary is one file, and its articles are documents of their own.
    return pair.section if pair.kind == "word" else pair.document


def _fraction(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32


def write_pairs(pairs: Iterable[Pair], path: Path) -> None:
    """In the order of their sections, whose passages resemble each other, so that the file is small."""
    with lzma.open(path, "wt", encoding="utf-8") as lines:
        for pair in sorted(pairs, key=lambda pair: (pair.section, pair.kind, pair.query)):
            lines.write(json.dumps(asdict(pair), ensure_ascii=False) + "\n")


def read_pairs(path: Path) -> list[Pair]:
    """What `write_pairs` wrote."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [Pair(**json.loads(line)) for line in lines]
