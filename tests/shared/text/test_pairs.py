"""Pairs as the tokenizer itself joins them, and what is cut where they are too long; a judge's prompt as its model card makes it.

The references are the tokenizers library's own pairs and transformers' truncation of the second text.
"""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from shared.errors import ContextLengthExceededError, InvalidRequestError
from shared.text.judge_preparer import JudgePreparer
from shared.text.pair_preparer import FramedPairPreparer, PairRules
from shared.text.tokenizer import Tokenizer
from tests.shared.modeling.tiny_bert import save_tokenizer

PROCESSORS = {
    "template": processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    ),
    "bert": processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "roberta": processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
}
DOCUMENTS = ["w60 w61", "w70", "w80 w81 w82 w83 w84 w85 w86 w87"]
RULES = PairRules("query", "documents")


def make_preparer(folder: Path, kind: str, max_tokens: int = 64) -> FramedPairPreparer:
    save_tokenizer(folder)
    fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    fast.post_processor = PROCESSORS[kind]
    fast.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(folder)
    frame = tokenizer.pair_frame()
    assert frame is not None
    return FramedPairPreparer(tokenizer, max_tokens, frame)


@pytest.mark.parametrize("kind", PROCESSORS)
def test_pairs_are_those_of_the_tokenizer(tmp_path: Path, kind: str) -> None:
    preparer = make_preparer(tmp_path, kind)
    fast = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for queries in (["w50 w51"], ["w50", "w51", "w52 w53"]):
        ours = preparer.from_pairs(queries, DOCUMENTS, RULES).sequences
        all_queries = queries * 3 if len(queries) == 1 else queries
        theirs = [fast.encode(query, document) for query, document in zip(all_queries, DOCUMENTS, strict=True)]
        assert [(pair.token_ids, pair.type_ids) for pair in ours] == [(pair.ids, pair.type_ids) for pair in theirs]


def test_a_tokenizer_without_a_convention_for_pairs(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    fast = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast.post_processor = processors.ByteLevel()
    fast.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).pair_frame() is None


def test_only_the_document_is_cut(tmp_path: Path) -> None:
    preparer = make_preparer(tmp_path, "template", max_tokens=9)
    rules = PairRules("query", "documents", truncate="end")
    prepared = preparer.from_pairs(["w50 w51"], DOCUMENTS, rules)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    theirs = reference(["w50 w51"] * 3, DOCUMENTS, truncation="only_second", max_length=9)["input_ids"]
    assert [pair.token_ids for pair in prepared.sequences] == theirs
    assert prepared.cut == (2,)
    start = preparer.from_pairs(["w50 w51"], DOCUMENTS, PairRules("query", "documents", truncate="start"))
    assert start.sequences[2].token_ids == [2, 50, 51, 3, 84, 85, 86, 87, 3]


def test_a_limit_for_documents_cuts_them_to_it_and_to_what_fits(tmp_path: Path) -> None:
    preparer = make_preparer(tmp_path, "template", max_tokens=9)
    for limit, kept in ((1, 1), (3, 3), (100, 4)):
        rules = PairRules("query", "documents", max_document_tokens=limit)
        (pair,) = preparer.from_pairs(["w50 w51"], DOCUMENTS[2:], rules).sequences
        assert pair.token_ids == [2, 50, 51, 3, *range(80, 80 + kept), 3]


@pytest.mark.parametrize(
    ("queries", "rules", "words"),
    [
        (["w50 w51"], RULES, r"documents\.2 has 8 tokens; the model's maximum of 9 leaves 4"),
        (["w50 w51 w52 w53 w54 w55"], PairRules("query", "documents", truncate="end"), "query takes 9 tokens"),
        (["w50", "w50", "w50 " * 6], PairRules("text_1", "text_2", truncate="end"), r"text_1\.2 takes 9 tokens"),
    ],
)
def test_what_is_too_long_is_named(tmp_path: Path, queries: list[str], rules: PairRules, words: str) -> None:
    with pytest.raises(ContextLengthExceededError, match=words):
        make_preparer(tmp_path, "template", max_tokens=9).from_pairs(queries, DOCUMENTS, rules)


def test_a_cross_encoder_takes_no_instruction(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="instruction"):
        make_preparer(tmp_path, "bert").from_pairs(["w50"], ["w60"], PairRules("query", "documents", instruction="w7"))


@pytest.mark.models
def test_a_judges_prompt(models_dir: Path) -> None:
    """As on the model card: ends and middle tokenized apart, the middle cut at its end."""
    tokenizer = Tokenizer(models_dir / "smollm2-135m-instruct")
    card = PreTrainedTokenizerFast(tokenizer_file=str(models_dir / "smollm2-135m-instruct" / "tokenizer.json"))
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    instruction = "Given a web search query, retrieve relevant passages that answer the query"
    ends = [card.encode(text, add_special_tokens=False) for text in (before, after)]
    documents = ["Paris is the capital of France. " * 9, "Naïve 北京"]
    for max_tokens in (110, 200):
        prepared = JudgePreparer(tokenizer, max_tokens).from_pairs(
            ["Where is Paris?"], documents, PairRules("query", "documents", truncate="end")
        )
        middles = [
            card.encode(
                f"<Instruct>: {instruction}\n<Query>: Where is Paris?\n<Document>: {document}",
                add_special_tokens=False,
            )[: max_tokens - len(ends[0]) - len(ends[1])]
            for document in documents
        ]
        assert [pair.token_ids for pair in prepared.sequences] == [[*ends[0], *middle, *ends[1]] for middle in middles]
        assert prepared.cut == ((0,) if max_tokens == 110 else ())


@pytest.mark.models
def test_a_judge_is_told_what_to_look_for(models_dir: Path) -> None:
    tokenizer = Tokenizer(models_dir / "smollm2-135m-instruct")
    rules = PairRules("query", "documents", instruction="Find recipes")
    (prompt,) = JudgePreparer(tokenizer, 200).from_pairs(["soup"], ["Boil water."], rules).sequences
    assert "<Instruct>: Find recipes\n<Query>: soup\n<Document>: Boil water.<|im_end|>" in tokenizer.decode(
        prompt.token_ids
    )
