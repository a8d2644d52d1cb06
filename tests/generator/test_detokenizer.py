"""Incremental detokenizing: the pieces together are the whole text, and no piece ends in half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from services.generator.frontend.detokenizer import IncrementalDetokenizer
from shared.text.tokenizer import Tokenizer

TEXTS = [
    "plain words",
    "naïve café",
    "日本語のテキスト",
    "👩‍👩‍👧‍👦 family",
    "a\u0301e\u0302",
    "Grüße 🎉🎉",
    "\n\n\t x",
    "ẞ𝔘𝔫𝔦",
]


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory):
    """One token per byte: every character outside ASCII spans several tokens."""
    folder = tmp_path_factory.mktemp("bytes")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def pieces_of(tokenizer, ids):
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_out_whole_and_never_in_half_characters(byte_tokenizer, text):
    pieces = pieces_of(byte_tokenizer, byte_tokenizer.encode(text))
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_ids_give_the_text_of_all_ids_together(byte_tokenizer, ids):
    assert "".join(pieces_of(byte_tokenizer, ids)) == byte_tokenizer.decode(ids)


@pytest.mark.models
@given(text=st.text(max_size=60))
def test_any_text_through_the_real_tokenizer(smollm_tokenizer, text):
    ids = smollm_tokenizer.encode(text, add_special_tokens=False)
    expected = smollm_tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces_of(smollm_tokenizer, ids)) == expected
