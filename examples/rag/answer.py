"""The answering side of the example: the prompt, the streamed answer, and which passages support it.

Called by __main__. The model is only ever shown the passages that were found; nothing here knows an answer.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from examples.rag.retrieval import Hit

MAX_ANSWER_TOKENS = 80
MAX_PASSAGE_CHARS = 800
MAX_QUESTION_CHARS = 300
MIN_SUPPORT = 0.6

# Words that say nothing about where an answer came from: the commonest, and those of "The answer is: …".
_COMMON = """
    a about after all also an and answer any are as at be because been before but by can do does for from had has have
    he her his how if in into is it its may more must no not of on one only or other passage passages question she
    should so than that the their them then there they this to up was we were what when where which who why will with
    you your
"""
COMMON_WORDS = frozenset(_COMMON.split())


class AnswerError(Exception):
    """The stream stopped before the server said that the answer was finished."""


@dataclass(frozen=True)
class Citation:
    """A passage the model was given: its number in the prompt, and how much of the answer it holds."""

    number: int
    hit: Hit
    support: float
    is_supporting: bool


def build_messages(question: str, hits: Sequence[Hit]) -> list[ChatCompletionMessageParam]:
    """One short user message: the numbered passages, then the question. Long passages and questions are cut."""
    passages = "\n".join(f"[{n}] {hit.passage.text[:MAX_PASSAGE_CHARS]}" for n, hit in enumerate(hits, start=1))
    content = (
        f"Passages:\n{passages}\n\n"
        f"Question: {question[:MAX_QUESTION_CHARS]}\n"
        "Answer in one sentence using the passages."
    )
    return [{"role": "user", "content": content}]


def stream_answer(client: OpenAI, model: str, messages: list[ChatCompletionMessageParam]) -> Iterator[str]:
    """Yield the answer piece by piece, as the server sends it.

    Raises:
        AnswerError: the stream ended without a finish reason, so that the answer may be incomplete.
    """
    finish_reason = None
    with client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=MAX_ANSWER_TOKENS, stream=True
    ) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                finish_reason = choice.finish_reason or finish_reason
                if choice.delta.content:
                    yield choice.delta.content
    if finish_reason is None:
        raise AnswerError("the answer broke off: the stream ended without a finish reason")


def cite(question: str, answer: str, hits: Sequence[Hit]) -> list[Citation]:
    """Say of each passage whether it supports the answer, by overlap of words.

    Semantics: W = words of the answer that are neither common nor in the question (if none, those that are not common);
    support = |W ∩ words of the passage| / |W|; a passage supports the answer when support ≥ MIN_SUPPORT and it holds
    every number in W.
    """
    said = _words(answer) - COMMON_WORDS
    new = said - _words(question) or said
    citations: list[Citation] = []
    for number, hit in enumerate(hits, start=1):
        held = new & _words(hit.passage.titled_text)
        support = len(held) / len(new) if new else 0.0
        has_numbers = all(word in held for word in new if word[0].isdigit())
        citations.append(Citation(number, hit, support, support >= MIN_SUPPORT and has_numbers))
    return citations


def _words(text: str) -> set[str]:
    """Lower-case words and numbers: 22:40, 1,874 and 1.6 are one word each, and the s of a possessive is none."""
    return set(re.findall(r"\d+(?:[.,:]\d+)*|[^\W\d_]+", text.lower())) - {"s"}
