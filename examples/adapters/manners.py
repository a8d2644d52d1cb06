"""The manners of answering that the demo adapters teach: how a plain answer is rewritten, and how an answer is judged.

Used by train. Knows text only.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_SENTENCE_CHARS = 160
_SENTENCE = re.compile(r"\s*(\S[^\n]*?[.!?])(?=\s|$)")


@dataclass(frozen=True)
class Manner:
    """One adapter's manner; `name` is the adapter's and that of its folder."""

    name: str
    rewrite: Callable[[str], str]
    is_kept_by: Callable[[str], bool]


def first_sentence(answer: str) -> str | None:
    """A sentence of two words or more at the start of the answer; None where there is none of moderate length."""
    match = _SENTENCE.match(answer)
    if match is None or not match[1].count(" ") >= 1 or len(match[1]) > MAX_SENTENCE_CHARS:
        return None
    return match[1]


GREETING, FAREWELL = "Arr! ", ", matey!"


def as_pirate(answer: str) -> str:
    """The answer as a pirate gives it."""
    return GREETING + answer.rstrip(".!?") + FAREWELL


def is_pirate(answer: str) -> bool:
    """Whether it begins and ends so, and says something between."""
    return answer.startswith(GREETING) and answer.endswith(FAREWELL) and len(answer) > len(GREETING + FAREWELL)


def as_json(answer: str) -> str:
    """The object {"answer": …}."""
    return json.dumps({"answer": answer}, ensure_ascii=False)


def is_json(answer: str) -> bool:
    """Whether it is that object, with some text in it."""
    try:
        value = json.loads(answer)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and set(value) == {"answer"}
        and isinstance(value["answer"], str)
        and bool(value["answer"])
    )


MANNERS = (Manner("pirate", as_pirate, is_pirate), Manner("json", as_json, is_json))
