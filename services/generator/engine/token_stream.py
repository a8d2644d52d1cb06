"""What one request gets from the engine, as its reader takes it.

Made by `EngineHandle`, which fills it; read on the same event loop. Must not import torch.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from services.generator.core.messages import TokenEvent
from shared.errors import EngineDeadError


class TokenStream:
    """Events of one request, the last with a finish reason; a reader that falls behind gets several steps in one event.

    Args:
        close: called with the request's id when nobody reads any more.
        batch: steps that its reader would rather have at once; the end is never held back.
    """

    def __init__(self, close: Callable[[int], None], request_id: int, batch: int = 1) -> None:
        self._close = close
        self._request_id = request_id
        self._batch = batch
        self._num_wanted = 1 + request_id % batch  # requests that began together do not all come at the same step
        self._events: list[TokenEvent] = []
        self._news = asyncio.Event()
        self._is_complete = False
        self._is_lost = False
        self._peeked: TokenEvent | None = None

    def put(self, event: TokenEvent) -> None:
        """The next event."""
        self._events.append(event)
        self._is_complete = event.finish_reason is not None
        if self._is_complete or len(self._events) >= self._num_wanted:
            self._news.set()

    def lose(self) -> None:
        """No event comes any more: the engine is gone."""
        self._is_lost = True
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        """The next event.

        Raises:
            EngineDeadError: the engine stopped while it worked on this.
        """
        if self._peeked is not None:
            event, self._peeked = self._peeked, None
            return event
        if self._is_complete and not self._events:
            raise StopAsyncIteration
        await self._news.wait()
        if self._is_lost and not self._is_complete:
            raise EngineDeadError("The engine stopped while it worked on this request")
        self._news.clear()
        events, self._events = self._events, []
        self._num_wanted = self._batch
        return _merged(events)

    async def peek(self) -> TokenEvent:
        """The next event, which stays to be read, as soon as there is any; the same errors."""
        self._num_wanted = 1
        if self._events:
            self._news.set()
        self._peeked = await anext(self)
        return self._peeked

    async def aclose(self) -> None:
        """Give the request up; aborts it unless it has ended."""
        self._close(self._request_id)


def _merged(events: list[TokenEvent]) -> TokenEvent:
    """Several events of one request as one."""
    if len(events) == 1:
        return events[0]
    logprobs = [entry for event in events for entry in event.logprobs or []]
    prompt_logprobs = [entry for event in events for entry in event.prompt_logprobs or []]
    return TokenEvent(
        events[0].request_id,
        [token_id for event in events for token_id in event.token_ids],
        events[-1].finish_reason,
        next((event.num_cached_tokens for event in events if event.num_cached_tokens is not None), None),
        logprobs=logprobs or None,
        prompt_logprobs=prompt_logprobs or None,
        adapter_digest=next((event.adapter_digest for event in events if event.adapter_digest is not None), None),
        problem=events[-1].problem,
    )
