"""Prompts, lower-casing and every limit on inputs, with a tokenizer of words.

The limits' messages carry the counts; `param` is the field the caller named.
"""

import numpy as np
import pytest

from shared.errors import ContextLengthExceededError, InvalidRequestError
from shared.text.preparer import Prepared, TextPreparer
from shared.text.prompts import Prompts
from shared.text.tokenizer import Tokenizer
from shared.text.vector_shape import VectorShape
from tests.shared.modeling.tiny_bert import save_tokenizer


@pytest.fixture(scope="module")
def preparer(tmp_path_factory: pytest.TempPathFactory) -> TextPreparer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return TextPreparer(
        Tokenizer(folder),
        6,
        vocab_size=97,
        is_lowercased=True,
        prompts=Prompts({"query": "w90 ", "passage": "w91 "}, default="w92 "),
        vectors=VectorShape(8, (), is_normalized=True),
    )


def test_prompts_and_lower_case(preparer: TextPreparer) -> None:
    assert preparer.from_texts(["W7", "w8 w9"], prompt="", param="input").sequences == [[2, 7, 3], [2, 8, 9, 3]]
    assert preparer.from_texts(["w7"], prompt="W90 ", param="query").sequences == [[2, 90, 7, 3]]


def test_which_prompt_is_meant(preparer: TextPreparer) -> None:
    assert [preparer.prompts.of_kind(kind) for kind in ("text", "query", "document")] == ["w92 ", "w90 ", "w91 "]
    with pytest.raises(InvalidRequestError, match="passage, query") as refused:
        preparer.prompts.named("code", param="prompt_name")
    assert refused.value.param == "prompt_name"


def test_token_ids_are_taken_as_they_are(preparer: TextPreparer) -> None:
    assert preparer.from_token_ids([[7], [8, 9]], param="input") == Prepared([[7], [8, 9]])


def test_an_empty_text_is_refused(preparer: TextPreparer) -> None:
    with pytest.raises(InvalidRequestError, match=r"input\.1 is an empty string") as refused:
        preparer.from_texts(["w7", ""], prompt="", param="input")
    assert refused.value.param == "input"


@pytest.mark.parametrize("extra", [0, 1])
def test_the_length_limit_counts_special_tokens(preparer: TextPreparer, extra: int) -> None:
    text = " ".join(["w7"] * (4 + extra))
    if extra == 0:
        assert len(preparer.from_texts([text], prompt="", param="input").sequences[0]) == 6
        return
    with pytest.raises(ContextLengthExceededError, match=r"input has 7 tokens.*maximum is 6"):
        preparer.from_texts([text], prompt="", param="input")
    with pytest.raises(ContextLengthExceededError, match=r"input\.1 has 7 tokens"):
        preparer.from_token_ids([[7], [7] * 7], param="input")


def test_ids_outside_the_vocabulary_are_named(preparer: TextPreparer) -> None:
    with pytest.raises(InvalidRequestError, match=r"input\.1 has the token id 97.*vocabulary of 97") as refused:
        preparer.from_token_ids([[96], [5, 97, 200]], param="input")
    assert refused.value.param == "input"


def test_an_empty_list_of_ids_is_refused(preparer: TextPreparer) -> None:
    with pytest.raises(InvalidRequestError, match="no tokens"):
        preparer.from_token_ids([[5], []], param="input")


def test_what_may_be_cut_keeps_its_special_tokens(preparer: TextPreparer) -> None:
    texts = ["w7", "w10 w11 w12 w13 w14 w15"]
    end = preparer.from_texts(texts, prompt="", param="input", truncate="end")
    assert end == Prepared([[2, 7, 3], [2, 10, 11, 12, 13, 3]], cut=(1,))
    start = preparer.from_texts(texts, prompt="", param="input", truncate="start")
    assert start == Prepared([[2, 7, 3], [2, 12, 13, 14, 15, 3]], cut=(1,))
    ids = preparer.from_token_ids([[5, 6, 7, 8, 9, 10, 11]], param="input", truncate="start")
    assert ids == Prepared([[6, 7, 8, 9, 10, 11]], cut=(0,))


def test_vectors_are_cut_only_to_lengths_that_the_model_has() -> None:
    shape = VectorShape(8, (2, 4), is_normalized=True)
    for num_dims, words in ((9, "have 8 numbers"), (3, "trained for 2, 4")):
        with pytest.raises(InvalidRequestError, match=words):
            shape.check(num_dims, param="dimensions")
    shape.check(8, param="dimensions")
    vectors = np.array([[3, 4, 12, 0, 0, 0, 0, 0], [0] * 8], np.float32) / np.float32(13)
    assert shape.cut(vectors, 2) == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))
