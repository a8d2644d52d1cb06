"""The parts of the reranker's training that have right answers: BM25, the two figures, wrong passages, rows of token ids.

No trained model is needed.
"""

import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from examples.reranker.handbook import answers_in, handbook_passages
from examples.reranker.negatives import Counts, hard_negatives
from examples.reranker.pairs import Pair, read_pairs, split_pairs, without_repeats, write_pairs
from examples.reranker.ranking import Bm25, quality
from examples.reranker.token_table import Frame, pair_inputs, tokenize


def _pair(number: int, **changed: str) -> Pair:
    known = {
        "query": f"q{number}",
        "passage": f"p{number}",
        "document": f"s/file{number % 50}",
        "section": f"#{number}",
    }
    return Pair(**{**known, "kind": "heading", **changed})


def test_no_document_is_on_both_sides() -> None:
    split = split_pairs([_pair(number) for number in range(500)], 0.3)
    assert len(split.train) + len(split.held_out) == 500
    assert split.train
    assert split.held_out
    assert not {pair.document for pair in split.train} & {pair.document for pair in split.held_out}


def test_pairs_survive_their_file_and_repeats_do_not(tmp_path: Path) -> None:
    pairs = [_pair(1), _pair(2, query="Q1"), _pair(3, passage="p4"), _pair(4), _pair(5, passage="naïve\n“p”")]
    assert without_repeats(pairs) == [pairs[4]]
    write_pairs(pairs, tmp_path / "pairs.jsonl.xz")
    assert read_pairs(tmp_path / "pairs.jsonl.xz") == pairs
    assert pairs[0].source == "s"


def test_bm25_by_its_formula() -> None:
    scores = Bm25(["the cat sat", "the dog the dog", "a bird"]).scores(["The dog, the eel", "nothing"])
    mean = (3 + 4 + 2) / 3

    def part(documents_with: int, times: int, length: int) -> float:
        weight = math.log(1 + (3 - documents_with + 0.5) / (documents_with + 0.5))
        return weight * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * length / mean))

    expected = [part(2, 1, 3), part(2, 2, 4) + part(1, 2, 4), 0]
    assert scores[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert scores[1].tolist() == [0, 0, 0]


def test_the_figures_by_their_formulas() -> None:
    figures = quality([0, 2, 10, None])
    assert figures["ndcg@10"] == pytest.approx((1 + 1 / math.log2(4)) / 4)
    assert figures["mrr"] == pytest.approx((1 + 1 / 3 + 1 / 11) / 4)


def test_wrong_passages_are_near_and_not_right() -> None:
    # On a circle: passage n is at n * 10 degrees, and every query is at its own passage.
    angles = torch.deg2rad(torch.arange(12.0) * 10)
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    pairs = [_pair(number, document="s/a" if number < 6 else "s/b") for number in range(12)]
    pairs[3] = _pair(3, document="s/a", section="#0")
    pairs[11] = _pair(11, query="about eels", document="s/b")
    pairs[0] = _pair(0, query="eels", passage="zero", document="s/a")
    pairs[8] = _pair(8, passage="eels here", document="s/b")
    found = hard_negatives(pairs, vectors, vectors, Counts(by_cosine=2, by_words=1, of_document=2, skipped=1))
    # 1 is within cosine 0.95 of 0's own passage, 3 is of its section, 2 is the best of the rest and skipped.
    assert found[0].tolist() == [4, 5, 8, 2, 4]


def test_pairs_of_rows_are_the_tokenizers_own() -> None:
    words = ["[PAD]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "f"]
    fast = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="[PAD]"))
    fast.pre_tokenizer = Whitespace()
    fast.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
    queries, passages = ["a b", "c", "a b c d"], ["d e f d e f d e f", "e", "f e d"]
    expected = tokenizer(
        queries, passages, padding=True, truncation="only_second", max_length=9, return_tensors="pt",
        return_token_type_ids=True,
    )  # fmt: skip
    found = pair_inputs(
        tokenize(tokenizer, queries, 9, "cpu"), tokenize(tokenizer, passages, 9, "cpu"), Frame(1, 2, max_length=9)
    )
    assert {name: rows.tolist() for name, rows in found.items()} == {
        name: rows.tolist() for name, rows in expected.items()
    }


def test_every_question_about_the_handbook_has_one_answer() -> None:
    passages = handbook_passages()
    assert len(set(answers_in(passages))) > 40
