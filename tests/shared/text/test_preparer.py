"""Prompts, lower-casing and every limit on inputs, with a tokenizer of words.

The limits' messages carry the counts; `param` is the field the caller named.
"""

import pytest

from shared.errors import ContextLengthExceededError, InvalidRequestError
from shared.text.preparer import TextPreparer
from shared.text.tokenizer import Tokenizer
from tests.shared.modeling.tiny_bert import save_tokenizer


@pytest.fixture(scope="module")
def preparer(tmp_path_factory: pytest.TempPathFactory) -> TextPreparer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    prompts = {"text": "", "query": "w90 ", "document": "w91 "}
    return TextPreparer(Tokenizer(folder), 6, vocab_size=97, is_lowercased=True, prompts=prompts)  # type: ignore[arg-type]


def test_prompts_and_lower_case(preparer: TextPreparer) -> None:
    assert preparer.from_texts(["W7", "w8 w9"], kind="text", param="input") == [[2, 7, 3], [2, 8, 9, 3]]
    assert preparer.from_texts(["w7"], kind="query", param="query") == [[2, 90, 7, 3]]
    assert preparer.from_texts(["w7"], kind="document", param="documents") == [[2, 91, 7, 3]]


def test_token_ids_are_taken_as_they_are(preparer: TextPreparer) -> None:
    assert preparer.from_token_ids([[7], [8, 9]], param="input") == [[7], [8, 9]]


def test_an_empty_text_is_refused(preparer: TextPreparer) -> None:
    with pytest.raises(InvalidRequestError, match=r"input\.1 is an empty string") as refused:
        preparer.from_texts(["w7", ""], kind="text", param="input")
    assert refused.value.param == "input"


@pytest.mark.parametrize("extra", [0, 1])
def test_the_length_limit_counts_special_tokens(preparer: TextPreparer, extra: int) -> None:
    text = " ".join(["w7"] * (4 + extra))
    if extra == 0:
        assert len(preparer.from_texts([text], kind="text", param="input")[0]) == 6
        return
    with pytest.raises(ContextLengthExceededError, match=r"input has 7 tokens.*maximum is 6"):
        preparer.from_texts([text], kind="text", param="input")
    with pytest.raises(ContextLengthExceededError, match=r"input\.1 has 7 tokens"):
        preparer.from_token_ids([[7], [7] * 7], param="input")


def test_ids_outside_the_vocabulary_are_named(preparer: TextPreparer) -> None:
    with pytest.raises(InvalidRequestError, match=r"input\.1 has the token id 97.*vocabulary of 97") as refused:
        preparer.from_token_ids([[96], [5, 97, 200]], param="input")
    assert refused.value.param == "input"


def test_an_empty_list_of_ids_is_refused(preparer: TextPreparer) -> None:
    with pytest.raises(InvalidRequestError, match="no tokens"):
        preparer.from_token_ids([[5], []], param="input")
