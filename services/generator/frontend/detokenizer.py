"""Token ids to text as they come: never half a character, and in the end exactly the text of all ids together.

One per choice, fed by `frontend.generation`. Knows no stop strings and no requests.
"""

from collections.abc import Sequence

from shared.text.tokenizer import Tokenizer

_REPLACEMENT = "�"
_MAX_UNDECIDED = 64


class IncrementalDetokenizer:
    """Keeps a short window of ids, since a token's text may depend on its neighbours.

    window:  | ids whose text is out, kept as context | ids whose text is not yet complete |
             0                                        _num_emitted
    """

    def __init__(self, tokenizer: Tokenizer, *, skips_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._window: list[int] = []
        self._num_emitted = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became complete with `token_ids`, maybe none."""
        return "".join(self._push_one(token_id) for token_id in token_ids)

    def flush(self) -> str:
        """What is left at the end; bytes that never became a character are U+FFFD."""
        text, context = self._texts()
        self._window.clear()
        self._num_emitted = 0
        return text[len(context) :]

    def _push_one(self, token_id: int) -> str:
        if self._skips_special and token_id in self._tokenizer.special_ids:
            return ""
        self._window.append(token_id)
        text, context = self._texts()
        is_whole = not text.endswith(_REPLACEMENT) and len(text) > len(context)
        # No character takes so many tokens: what is there will never be whole, and waiting would cost more with each token.
        is_hopeless = len(self._window) - self._num_emitted > _MAX_UNDECIDED
        if not (is_whole or is_hopeless):
            return ""
        self._window = self._window[self._num_emitted :]
        self._num_emitted = len(self._window)
        return text[len(context) :]

    def _texts(self) -> tuple[str, str]:
        text = self._tokenizer.decode(self._window, skip_special_tokens=self._skips_special)
        context = self._tokenizer.decode(self._window[: self._num_emitted], skip_special_tokens=self._skips_special)
        return text, context
