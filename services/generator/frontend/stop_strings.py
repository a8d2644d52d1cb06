"""Finds stop strings in text that arrives in pieces, holding back only what may still become one.

One per choice, fed with detokenized text. The earliest match in the text wins, whatever the order of the stop strings.
"""

from collections.abc import Sequence


class StopStrings:
    """The pending text of one choice; `matched` is the stop string that ended it, if one did.

    Args:
        keeps_match: whether the stop string itself is shown.
    """

    def __init__(self, stops: Sequence[str], *, keeps_match: bool = False) -> None:
        self._stops = tuple(stops)
        self._keeps_match = keeps_match
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that can be shown now; nothing after a match is ever shown."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        pending = self._held + text
        found = [(at, stop) for stop in self._stops if (at := pending.find(stop)) >= 0]
        if found:
            # The earliest place wins; at one place the longest string, so that the choice has one meaning.
            at, self.matched = min(found, key=lambda item: (item[0], -len(item[1])))
            self._held = ""
            return pending[: at + len(self.matched) if self._keeps_match else at]
        keep = max(_overlap(pending, stop) for stop in self._stops)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def flush(self) -> str:
        """What was held back and can no longer become a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
