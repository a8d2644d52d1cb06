"""Token ids to text as they come: never half a character, and in the end exactly the text of all ids together.

One per choice, fed by `frontend.generation`. Knows no stop strings and no requests. Where a decoder lets one broken byte spoil the
whole characters beside it, as byte fallback does, those that are out stay; however many ids come together, the text is the same.
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
            if _REPLACEMENT not in text and self._is_whole(text):
                return self._emit(text, self._tail([*self._window[self._num_emitted :], *token_ids]))
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
        return self._emit(text, self._window[self._num_emitted :]) if is_hopeless or self._is_whole(text) else ""

    def _is_whole(self, text: str) -> bool:
        return not text.endswith(_REPLACEMENT) and len(text) > len(self._context)

    def _emit(self, text: str, context_ids: list[int]) -> str:
        """What `text`, that of the window, has beyond the context; `context_ids`, its last, are the next context."""
        new = text[len(self._context) :]
        self._window, self._num_emitted, self._context = context_ids, len(context_ids), self._decode(context_ids)
        return new

    def _tail(self, token_ids: list[int]) -> list[int]:
        """The last of `token_ids` that are whole characters: all that would be left, had they come one at a time.

        A decoder may write a broken character in as many signs as there are bytes before it, so its text depends on the context.
        """
        for size in range(1, len(token_ids)):
            text = self._decode(token_ids[-size:])
            if text and _REPLACEMENT not in text:
                return token_ids[-size:]
        return token_ids

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special)
