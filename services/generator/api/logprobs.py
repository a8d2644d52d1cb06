"""Writes log-probabilities in the two shapes that OpenAI's endpoints have.

Called by the completion and chat routes. Values that JSON cannot carry become -9999.
"""

import math
from collections.abc import Iterable, Sequence

from services.generator.core.messages import TokenLogprob
from services.generator.frontend.generation import ScoredToken
from shared.contracts.chat import ChatLogprob, ChatLogprobs, TopLogprob
from shared.contracts.completions import CompletionLogprobs
from shared.text.token_bytes import readable
from shared.text.tokenizer import Tokenizer

_LOWEST = -9999.0


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[ScoredToken]) -> CompletionLogprobs:
    """Four lists with an entry per token."""
    return CompletionLogprobs(
        tokens=[_text(tokenizer, token.token_id) for token in tokens],
        token_logprobs=[None if t.logprob is None else _finite(t.logprob.logprob) for t in tokens],
        top_logprobs=[None if t.logprob is None else _top(tokenizer, t.token_id, t.logprob) for t in tokens],
        text_offset=[token.text_offset for token in tokens],
    )


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[ScoredToken]) -> ChatLogprobs:
    """One entry per token, with bytes."""
    return ChatLogprobs(
        content=[_chat_entry(tokenizer, t.token_id, t.logprob) for t in tokens if t.logprob is not None]
    )


def _chat_entry(tokenizer: Tokenizer, token_id: int, logprob: TokenLogprob) -> ChatLogprob:
    chosen = _named(tokenizer, token_id, logprob.logprob)
    return ChatLogprob(
        token=chosen.token,
        logprob=chosen.logprob,
        bytes=chosen.bytes,
        top_logprobs=[_named(tokenizer, other, value) for other, value in logprob.top],
    )


def _named(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    data = tokenizer.token_bytes(token_id)
    return TopLogprob(token=readable(data), logprob=_finite(logprob), bytes=list(data))


def _top(tokenizer: Tokenizer, token_id: int, logprob: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens, and the chosen one even if it is not among them."""
    pairs = [*logprob.top, (token_id, logprob.logprob)]
    best: dict[str, float] = {}
    for other, value in pairs:
        best.setdefault(_text(tokenizer, other), _finite(value))
    return best


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return readable(tokenizer.token_bytes(token_id))


def _finite(value: float) -> float:
    return max(value, _LOWEST) if math.isfinite(value) else _LOWEST
