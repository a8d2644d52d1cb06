"""One choice being generated: token events of the engine in, pieces of text out, with the reason for its end.

Called by the API routes. Owns detokenizing and stop strings; the engine is a Protocol, so tests need no process.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from services.generator.core.messages import TokenEvent
from services.generator.core.request import FinishReason, SamplingParams
from services.generator.frontend.detokenizer import IncrementalDetokenizer
from services.generator.frontend.stop_strings import StopStrings
from shared.contracts.generation import FinishReason as PublicReason
from shared.errors import InternalError, InvalidRequestError
from shared.text.tokenizer import Tokenizer


class TokenSource(Protocol):
    """Events of one request; the production class is `engine.handle.TokenStream`."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """The events, the last with a finish reason."""
        ...

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""
        ...


class Engine(Protocol):
    """What starts requests; the production class is `engine.handle.EngineHandle`."""

    def submit(self, prompt: list[int], sampling: SamplingParams, cache_salt: str | None) -> TokenSource:
        """Start a request, or raise at once where the engine takes none."""
        ...


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that became certain, and with the last piece why the choice ended.

    Attributes:
        num_tokens: tokens generated since the piece before.
        stop_reason: the stop string or stop token id that ended it; None for the model's own end token.
        num_cached_tokens: prompt tokens that came from the prefix cache, the same in every piece.
    """

    text: str
    num_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int | None = None

    @property
    def public_reason(self) -> PublicReason | None:
        """The reason as the API writes it."""
        match self.finish_reason:
            case FinishReason.STOP:
                return "stop"
            case FinishReason.LENGTH:
                return "length"
            case _:
                return None


async def generate_text(
    source: TokenSource, tokenizer: Tokenizer, stops: Sequence[str]
) -> AsyncGenerator[TextPiece, None]:
    """Pieces of one choice; the last has a finish reason and none follows it.

    A stop string is found here, in the text: closing the source then aborts the request.
    """
    detokenizer = IncrementalDetokenizer(tokenizer)
    matcher = StopStrings(stops)
    num_tokens, num_cached = 0, None
    async with aclosing(source) as events:
        async for event in events:
            num_cached = event.num_cached_tokens if num_cached is None else num_cached
            for token_id in event.token_ids:
                num_tokens += 1
                text = matcher.push(detokenizer.push([token_id]))
                if matcher.matched is not None:
                    yield TextPiece(text, num_tokens, FinishReason.STOP, matcher.matched, num_cached)
                    return
                if text:
                    yield TextPiece(text, num_tokens, num_cached_tokens=num_cached)
                    num_tokens = 0
            if event.finish_reason is not None:
                _check_end(event.finish_reason)
                text = matcher.push(detokenizer.flush())
                if matcher.matched is not None:
                    yield TextPiece(text, num_tokens, FinishReason.STOP, matcher.matched, num_cached)
                else:
                    yield TextPiece(text + matcher.flush(), num_tokens, event.finish_reason, None, num_cached)


def _check_end(reason: FinishReason) -> None:
    """An end that is no answer becomes an error."""
    if reason is FinishReason.ERROR:
        raise InvalidRequestError("The engine cannot run this request: it does not fit into the KV cache")
    if reason is FinishReason.ABORT:
        raise InternalError("The request was aborted")
