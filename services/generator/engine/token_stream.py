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
        waiter: its events; None where the engine is gone.
    """

    def __init__(
        self, close: Callable[[int], None], request_id: int, waiter: "asyncio.Queue[TokenEvent | None]"
    ) -> None:
        self._close = close
        self._request_id = request_id
        self._waiter = waiter
        self._is_over = False
        self._peeked: TokenEvent | None = None

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
        if self._is_over:
            raise StopAsyncIteration
        events = [await self._waiter.get()]
        while not self._waiter.empty():
            events.append(self._waiter.get_nowait())
        alive = [event for event in events if event is not None]
        self._is_over = len(alive) < len(events) or alive[-1].finish_reason is not None
        if not alive or (self._is_over and alive[-1].finish_reason is None):
            raise EngineDeadError("The engine stopped while it worked on this request")
        return _merged(alive)

    async def peek(self) -> TokenEvent:
        """The next event, which stays to be read; the same errors."""
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
