"""The parts of the reranker's training that have right answers: pairs from docstrings, BM25, and the two figures.

No model is needed.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from examples.reranker import pairs
from examples.reranker.ranking import Bm25, quality, top

SOURCE = '''
def used(a):
    """Return the number of blocks in use.

    A block counts as used from the moment it is given to a sequence until the last of the sequences that share it
    has ended, whatever the cache does with it afterwards.
    """

def terse(a):
    """Return it."""

def same(a):
    """%s. %s"""

def again(a):
    """%s. %s"""
''' % (("The same words for a sentence", "x" * 200) * 2)


def test_a_docstrings_first_sentence_asks_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_package"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    (package / "broken.py").write_text("def (")
    (package / "tests" / "more.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    (pair,) = pairs.collect_pairs(["some_package", "no_such_package"])
    assert pair.query == "Return the number of blocks in use"
    assert pair.passage.startswith("A block counts as used from the moment")
    assert "\n" not in pair.passage


def test_no_file_is_on_both_sides() -> None:
    all_pairs = [pairs.Pair(f"q{place}", f"p{place}", f"file{place % 50}.py") for place in range(500)]
    split = pairs.split_pairs(all_pairs, 0.3)
    assert len(split.train) + len(split.held_out) == 500
    assert split.train
    assert split.held_out
    assert not {pair.source for pair in split.train} & {pair.source for pair in split.held_out}


def test_bm25_by_its_formula() -> None:
    scores = Bm25(["the cat sat", "the dog the dog", "a bird"]).scores("The dog, the eel")
    mean = (3 + 4 + 2) / 3

    def part(documents_with: int, times: int, length: int) -> float:
        weight = math.log(1 + (3 - documents_with + 0.5) / (documents_with + 0.5))
        return weight * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * length / mean))

    assert scores == pytest.approx([part(2, 1, 3), part(2, 2, 4) + part(1, 2, 4), 0], rel=1e-5)


def test_the_figures_by_their_formulas() -> None:
    figures = quality([0, 2, 10, None])
    assert figures["ndcg@10"] == pytest.approx((1 + 1 / math.log2(4)) / 4)
    assert figures["mrr"] == pytest.approx((1 + 1 / 3 + 1 / 11) / 4)
    assert top(np.array([0.5, 0.9, 0.5, 0.9], np.float32), 3) == [1, 3, 0]
