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
        self._context = ""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became complete with `token_ids`, maybe none."""
        if self._skips_special:
            token_ids = [token_id for token_id in token_ids if token_id not in self._tokenizer.special_ids]
        if len(token_ids) > 1:
            text = self._decode([*self._window, *token_ids])
            if self._is_whole(text):
                self._window += token_ids
                return self._emit(text)
        return "".join(map(self._push_one, token_ids))

    def flush(self) -> str:
        """What is left at the end; bytes that never became a character are U+FFFD."""
        text, context = self._decode(self._window), self._context
        self._window, self._num_emitted, self._context = [], 0, ""
        return text[len(context) :]

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        # No character takes so many tokens: what is there will never be whole, and waiting would cost more with each token.
        is_hopeless = len(self._window) - self._num_emitted > _MAX_UNDECIDED
        return self._emit(text) if is_hopeless or self._is_whole(text) else ""

    def _is_whole(self, text: str) -> bool:
        return not text.endswith(_REPLACEMENT) and len(text) > len(self._context)

    def _emit(self, text: str) -> str:
        """What `text`, that of the window, has beyond the context; the ids that it came from are the next context."""
        new = text[len(self._context) :]
        self._window = self._window[self._num_emitted :]
        self._num_emitted = len(self._window)
        self._context = self._decode(self._window)
        return new

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special)
