r"""Whether a regular expression is fast to match, told by its text alone: Python's matcher has no time limit, and holds the lock of
the whole engine while it runs.

Used by `peft_values` for expressions that an adapter's folder brings. Refuses what may take exponential time, `(a+)+` or `(a|b)*`,
and more repetitions in a row than anybody writes; must not be asked whether something is an expression at all.
"""

import re

MAX_REPEATS = 6
"""Repetitions in one expression; each may multiply the time by the length of a module's name."""

_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P?[<=!:>a-zA-Z-]*|[*+?]|\{[0-9,]+\}|.", re.DOTALL)
_REPEATS = ("*", "+", "{")


def is_fast(expression: str) -> bool:
    """Whether no group that repeats holds a choice or a repetition, and there are few repetitions."""
    pieces: list[str] = _PIECE.findall(expression)
    open_groups = [False]  # whether each group so far holds a choice or a repetition, the expression itself first
    is_choosy, num_repeats, before = False, 0, ""  # `is_choosy`: whether the piece before was the end of such a group
    for piece in pieces:
        is_lazy = piece == "?" and before.startswith((*_REPEATS, "?"))
        if piece.startswith("("):
            open_groups.append(False)
        elif piece in ("|", "?") and not is_lazy:
            open_groups[-1] = True
        elif piece.startswith(_REPEATS) and (len(piece) > 1 or piece != "{"):
            if is_choosy:
                return False
            open_groups[-1] = True
            num_repeats += 1
        is_choosy = piece == ")" and len(open_groups) > 1 and open_groups.pop()
        open_groups[-1] |= is_choosy
        before = piece
    return num_repeats <= MAX_REPEATS
