"""One choice being generated: token events of the engine in, pieces of text out, with the reason for its end.

Called by `frontend.choices`. Owns detokenizing and stop strings; the engine is a Protocol, so tests need no process.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import msgspec

from services.generator.core.adapters import AdapterState
from services.generator.core.messages import TokenEvent, TokenLogprob
from services.generator.core.request import Choice, FinishReason, RequestOptions
from services.generator.frontend.detokenizer import IncrementalDetokenizer
from services.generator.frontend.stop_strings import StopStrings
from shared.contracts.generation import FinishReason as PublicReason
from shared.errors import AdapterNotFoundError, DeadlineExceededError, InternalError, InvalidRequestError
from shared.text.tokenizer import Tokenizer


class TokenSource(Protocol):
    """Events of one request; the production class is `engine.handle.TokenStream`."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """The events, the last with a finish reason."""
        ...

    async def peek(self) -> TokenEvent:
        """The next event, which stays to be read."""
        ...

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""
        ...


class Engine(Protocol):
    """What starts requests; the production class is `engine.handle.EngineHandle`."""

    def check_open(self) -> None:
        """Raise where it takes none."""
        ...

    @property
    def max_requests(self) -> int:
        """How many fit into it and its queue at once."""
        ...

    @property
    def max_image_rows(self) -> int:
        """Rows that the different images of one request may have together."""
        ...

    @property
    def adapters(self) -> Mapping[str, AdapterState]:
        """What requests may name, by name."""
        ...

    def submit(self, choices: Sequence[Choice], options: RequestOptions) -> Sequence[TokenSource]:
        """Start all choices of a request, or raise at once where the engine does not take all of them."""
        ...


@dataclass(frozen=True, slots=True)
class TextRules:
    """How tokens become the text of an answer.

    Attributes:
        stops: strings that end it.
        stop_token_ids: the request's own ids that end it, which are then named as the reason.
        min_tokens: stop strings do not count before this many tokens.
    """

    stops: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    keeps_stop: bool = False
    skips_special: bool = True
    min_tokens: int = 0


class ScoredToken(msgspec.Struct, frozen=True):
    """A token with its log-probability, and where its text begins in the choice's text, in characters."""

    token_id: int
    logprob: TokenLogprob | None
    text_offset: int


class TextPiece(msgspec.Struct, frozen=True):
    """Text that became certain, and with the last piece why the choice ended; a stream makes one for each token.

    Attributes:
        token_ids: generated since the piece before; they need not be those that the text came from.
        stop_reason: the stop string or stop token id that ended it; None for the model's own end token.
        num_cached_tokens: prompt tokens that came from the prefix cache, the same in every piece.
        tokens: the same, where log-probabilities were asked for.
        prompt_logprobs: with the first piece: of each prompt token from the second on, where asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int | None = None
    tokens: list[ScoredToken] = []
    prompt_logprobs: list[TokenLogprob] = []

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


Pieces = AsyncGenerator[tuple[int, TextPiece], None]
"""(index of the choice, its next piece) in the order in which they come."""


async def generate_text(source: TokenSource, tokenizer: Tokenizer, rules: TextRules) -> AsyncGenerator[TextPiece, None]:
    """Pieces of one choice; the last has a finish reason and none follows it.

    A stop string is found here, in the text: closing the source then aborts the request.
    """
    text = _ChoiceText(tokenizer, rules)
    async with aclosing(source) as events:
        async for event in events:
            for piece in text.take(event):
                yield piece
                if piece.finish_reason is not None:
                    return


def check_end(event: TokenEvent) -> None:
    """Raise what a client is told where a request ended without an answer."""
    match event.finish_reason:
        case FinishReason.ERROR:
            raise InvalidRequestError(
                "The engine cannot run this request: it does not fit into the KV cache, or its grammar is too complex"
            )
        case FinishReason.DEADLINE:
            raise DeadlineExceededError("The deadline of the request passed before it was started")
        case FinishReason.NO_ADAPTER:
            raise AdapterNotFoundError("The adapter is not there any more", param="model")
        case FinishReason.BAD_ADAPTER:
            raise InvalidRequestError(f"The adapter cannot be served: {event.problem}", param="model")
        case FinishReason.FAILED:
            raise InternalError("The engine failed on this request")
        case FinishReason.ABORT:
            raise InternalError("The request was aborted")


class _ChoiceText:
    """Text of one choice as far as it has come, and what the next piece will carry besides."""

    def __init__(self, tokenizer: Tokenizer, rules: TextRules) -> None:
        self._rules = rules
        self._detokenizer = IncrementalDetokenizer(tokenizer, skips_special=rules.skips_special)
        self._matcher = StopStrings(rules.stops, keeps_match=rules.keeps_stop)
        self._num_tokens = 0
        self._num_chars = 0
        self._new_token_ids: list[int] = []
        self._num_cached: int | None = None
        self._tokens: list[ScoredToken] = []
        self._prompt_logprobs: list[TokenLogprob] = []

    def take(self, event: TokenEvent) -> Iterator[TextPiece]:
        """The pieces that `event` makes certain."""
        self._num_cached = event.num_cached_tokens if self._num_cached is None else self._num_cached
        self._prompt_logprobs += event.prompt_logprobs or []
        for text in self._texts(event):
            if self._matcher.matched is not None:
                yield self._piece(text, FinishReason.STOP, self._matcher.matched)
                return
            if text:
                yield self._piece(text)
        if event.finish_reason is not None:
            yield self._last_piece(event)

    def _texts(self, event: TokenEvent) -> Iterator[str]:
        """What can be shown: of each token where that makes a difference, else of all at once, which costs less."""
        token_ids = event.token_ids
        hides_last = event.finish_reason is FinishReason.STOP and not self._rules.keeps_stop
        shown = token_ids[:-1] if hides_last else token_ids
        if event.logprobs is None and not self._rules.stops:
            yield self._push(token_ids, shown)
            return
        logprobs: Sequence[TokenLogprob | None] = event.logprobs or [None] * len(token_ids)
        for index, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
            if logprob is not None:
                self._tokens.append(ScoredToken(token_id, logprob, self._num_chars))
            yield self._push([token_id], shown[index : index + 1])

    def _push(self, token_ids: list[int], shown: list[int]) -> str:
        self._num_tokens += len(token_ids)
        self._new_token_ids += token_ids
        text = self._detokenizer.push(shown)
        self._num_chars += len(text)
        return text if self._num_tokens < self._rules.min_tokens else self._matcher.push(text)

    def _last_piece(self, event: TokenEvent) -> TextPiece:
        reason = event.finish_reason
        check_end(event)
        text = self._matcher.push(self._detokenizer.flush())
        if self._matcher.matched is not None:
            return self._piece(text, FinishReason.STOP, self._matcher.matched)
        last = event.token_ids[-1] if event.token_ids else None
        is_own_stop = reason is FinishReason.STOP and last in self._rules.stop_token_ids
        return self._piece(text + self._matcher.flush(), reason, last if is_own_stop else None)

    def _piece(self, text: str, reason: FinishReason | None = None, stop_reason: str | int | None = None) -> TextPiece:
        piece = TextPiece(
            text,
            self._new_token_ids,
            reason,
            stop_reason,
            self._num_cached,
            tokens=self._tokens,
            prompt_logprobs=self._prompt_logprobs,
        )
        self._new_token_ids, self._tokens, self._prompt_logprobs = [], [], []
        return piece
