"""All choices of one API request at once: starts them together and gives out their pieces as they come.

Called by the API routes. Either all choices are started or none; when one fails or the client leaves, all are aborted.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from services.generator.core.request import Choice, RequestOptions
from services.generator.frontend.generation import Engine, TextPiece, TextRules, TokenSource, check_end, generate_text
from shared.text.tokenizer import Tokenizer


class Choices:
    """Several generations side by side; must be closed.

    Args:
        work: prompt and parameters of each choice, in order of their index.
        options: of the request.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        work: Sequence[Choice],
        rules: TextRules,
        options: RequestOptions,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._work = work
        self._rules = rules
        self._options = options
        self._sources: list[TokenSource] = []

    @property
    def num_choices(self) -> int:
        """Choices of the request."""
        return len(self._work)

    def start(self) -> None:
        """Submit all.

        Raises:
            ServiceError: the engine does not take all of them; none is running then.
        """
        self._sources = list(self._engine.submit(self._work, self._options))

    @property
    def adapter(self) -> str | None:
        """Name of the adapter that answers; None for the base model."""
        return self._options.adapter

    async def adapter_digest(self) -> str | None:
        """Of the version that answers, once the first choice is admitted; None for the base model.

        Raises:
            ServiceError: it is not admitted; nothing is left running then.
        """
        if self._options.adapter is None:
            return None
        try:
            event = await self._sources[0].peek()
            check_end(event)
        except BaseException:
            await self.aclose()
            raise
        return event.adapter_digest

    async def pieces(self) -> AsyncGenerator[tuple[int, TextPiece], None]:
        """(index, piece) in the order in which they come; ends when every choice has ended."""
        if len(self._sources) == 1:  # the common case needs no tasks
            async with aclosing(generate_text(self._sources[0], self._tokenizer, self._rules)) as texts:
                async for piece in texts:
                    yield 0, piece
            return
        ready: asyncio.Queue[tuple[int, TextPiece] | asyncio.Task[None]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(index, ready.put_nowait)) for index in range(len(self._sources))]
        for task in tasks:
            task.add_done_callback(ready.put_nowait)
        num_open = len(tasks)
        try:
            while num_open:
                item = await ready.get()
                if isinstance(item, asyncio.Task):
                    item.result()  # raises what the choice raised
                    num_open -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def aclose(self) -> None:
        """Abort whatever has not ended."""
        for source in self._sources:
            await source.aclose()

    async def _pump(self, index: int, emit: Callable[[tuple[int, TextPiece]], None]) -> None:
        async with aclosing(generate_text(self._sources[index], self._tokenizer, self._rules)) as texts:
            async for piece in texts:
                emit((index, piece))
