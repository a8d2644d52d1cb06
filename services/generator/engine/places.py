"""Room in the engine for callers that would rather wait than be refused.

Used by `LLM`, whose calls may come from many threads at once; the API does not wait, it answers that the service is full.
Lives in one event loop; knows nothing of requests.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Places:
    """A number of places, handed out in the order of asking, so that a large request does not wait for ever behind small ones."""

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._num_free = num_places
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def taken(self, num_wanted: int) -> AsyncIterator[None]:
        """Hold `num_wanted` places, or all where that is more than there are, while the block runs."""
        num_taken = min(num_wanted, self._num_places)
        async with self._turn:
            while self._num_free < num_taken:
                self._freed.clear()
                await self._freed.wait()
            self._num_free -= num_taken
        try:
            yield
        finally:
            self._num_free += num_taken
            self._freed.set()
