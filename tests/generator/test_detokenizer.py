"""Incremental detokenizing: the pieces together are the whole text, and no piece ends in half a character."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from services.generator.core.messages import TokenEvent
from services.generator.core.request import FinishReason
from services.generator.engine.token_stream import TokenStream
from services.generator.frontend.detokenizer import IncrementalDetokenizer
from services.generator.frontend.generation import TextRules, generate_text
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


@pytest.fixture(scope="module")
def fallback_tokenizer(tmp_path_factory):
    """Bytes by name, as SentencePiece has them: one broken character breaks all bytes that are beside it."""
    folder = tmp_path_factory.mktemp("fallback")
    tokens = ["\u2581", "\u2581a", "é", "b", *(f"<0x{byte:02X}>" for byte in range(256) if byte != ord(" "))]
    fast = FastTokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def pieces_of(tokenizer, ids, batch=1):
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.push(ids[at : at + batch]) for at in range(0, len(ids), batch)), detokenizer.flush()]


@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_out_whole_and_never_in_half_characters(byte_tokenizer, text, batch):
    pieces = pieces_of(byte_tokenizer, byte_tokenizer.encode(text), batch)
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)


@given(ids=st.lists(st.integers(0, 255), max_size=40), batch=st.integers(1, 9))
def test_any_ids_give_the_text_of_all_ids_together(byte_tokenizer, ids, batch):
    assert "".join(pieces_of(byte_tokenizer, ids, batch)) == byte_tokenizer.decode(ids)


WORDS = ["\u2581a", "\u2581", "é", "b", *(f"<0x{byte:02X}>" for byte in "日x\n".encode()), "<0xFF>"]


@given(words=st.lists(st.sampled_from(WORDS), max_size=40), batch=st.integers(2, 9))
def test_text_does_not_depend_on_how_many_ids_come_together_even_where_it_is_broken(fallback_tokenizer, words, batch):
    ids = [fallback_tokenizer.token_to_id(word) for word in words]
    assert "".join(pieces_of(fallback_tokenizer, ids, batch)) == "".join(pieces_of(fallback_tokenizer, ids))


def test_what_is_whole_of_a_batch_does_not_wait_for_the_rest(byte_tokenizer):
    assert IncrementalDetokenizer(byte_tokenizer).push(byte_tokenizer.encode("naïve é")[:-1]) == "naïve "


@pytest.mark.parametrize(("rules", "text"), [(TextRules(), "ab"), (TextRules(keeps_stop=True), "abc")])
def test_several_tokens_of_one_event_are_one_piece_without_the_token_that_ended_it(byte_tokenizer, rules, text):
    stream = TokenStream(lambda _request_id: None, 0)
    stream.put(TokenEvent(0, byte_tokenizer.encode("abc"), FinishReason.STOP))

    async def run():
        return [piece async for piece in generate_text(stream, byte_tokenizer, rules)]

    first, last = asyncio.run(run())
    assert (first.text, len(first.token_ids), last.text, last.finish_reason) == (text, 3, "", FinishReason.STOP)


@pytest.mark.models
@given(text=st.text(max_size=60))
def test_any_text_through_the_real_tokenizer(smollm_tokenizer, text):
    ids = smollm_tokenizer.encode(text, add_special_tokens=False)
    expected = smollm_tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces_of(smollm_tokenizer, ids)) == expected
