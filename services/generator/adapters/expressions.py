r"""In how many ways a regular expression may match, told by its text alone: Python's matcher has no time limit, and holds the lock
of the whole engine while it runs.

Used by `peft_values` for expressions that an adapter's folder brings. Counts more ways than there are, never fewer; must not be
asked whether something is an expression at all.
"""

import math
import re
from dataclasses import dataclass, field

MAX_WAYS = 2**20
"""Of all expressions of one key together; the matcher tries some 50 million in a second, for each module of the model."""

WAYS_PER_REPEAT = 16
"""Five repetitions in a row split a module's name of 50 characters in about 16⁵ ways."""

_PIECE = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:P<\w+>|P=\w+|<?[=!]|>|#|[a-zA-Z-]*:?))?|[*+?]|\{[0-9,]+\}|.", re.DOTALL
)
_IS_COMMENT = re.compile(r"\(\?(?:#|[a-zA-Z-]*x)")
_QUANTIFIER = re.compile(r"[*+?]|\{.+")
_MAY_MEAN_MORE = re.compile(r"[.^$\[]|\\\w")


@dataclass(slots=True)
class _Group:
    """What stands between two brackets, or all of it.

    Attributes:
        choices: ways and text of the alternatives before this one; no text where it is more than letters.
        ways: of this alternative up to the piece before the last, `last` of that.
    """

    choices: list[tuple[float, str | None]] = field(default_factory=list)
    ways: float = 1
    last: float = 1
    text: str | None = ""

    def add(self, ways: float, text: str | None = None) -> None:
        self.ways, self.last = self.ways * self.last, ways
        self.text = None if self.text is None or text is None else self.text + text.lower()

    def repeat(self, quantifier: str) -> None:
        is_ambiguous = self.last > 1 and quantifier != "?"
        self.last = math.inf if is_ambiguous else self.last + 1 if quantifier == "?" else WAYS_PER_REPEAT
        self.text = None

    def choose(self) -> None:
        self.choices.append((self.ways * self.last, self.text))
        self.ways, self.last, self.text = 1, 1, ""

    def total(self) -> float:
        """Of alternatives that are words, those match at one place that begin one another; of others, all may."""
        choices = [*self.choices, (self.ways * self.last, self.text)]
        words = [text for _, text in choices if text is not None]
        if len(words) < len(choices) or len(choices) == 1:
            return sum(ways for ways, _ in choices)
        return max(sum(word.startswith(other) for other in words) for word in words)


def num_ways(expression: str) -> float:
    """An upper bound; infinite where something repeats that has several ways itself, as in `(a+)+` and `(a|a)*`, and where a
    comment or the flag for them keeps the text from being read like this.
    """
    if _IS_COMMENT.search(expression):
        return math.inf
    groups, before = [_Group()], ""
    for piece in _PIECE.findall(expression):
        if piece.startswith("("):
            groups.append(_Group())
        elif piece == ")" and len(groups) > 1:
            ways = groups.pop().total()
            groups[-1].add(ways)
        elif piece == "|":
            groups[-1].choose()
        elif not _QUANTIFIER.fullmatch(piece):
            groups[-1].add(1, None if _MAY_MEAN_MORE.match(piece) else piece)
        elif not _QUANTIFIER.fullmatch(before):  # a second one makes the first lazy or possessive
            groups[-1].repeat(piece)
        before = piece
    return groups[0].total()
