"""Requests for adapters by name against an engine in this process, and what came of them.

Used by the benchmarks of many adapters in this folder. Knows no model.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Container, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import accumulate

from services.generator.core.request import RequestOptions, SamplingParams
from services.generator.engine.handle import EngineHandle
from services.generator.engine.threads import EngineThreads


@dataclass(frozen=True)
class Sizes:
    """Of requests in tokens, and how many clients there are where each waits for its answer."""

    prompt: int = 16
    output: int = 32
    num_clients: int = 32


@dataclass(frozen=True)
class Measured:
    """Tokens per second, and for each request its adapter and the seconds to its first token."""

    rate: float
    first_s: list[tuple[str, float]]

    def percentile(self, share: float, among: Container[str] | None = None) -> float:
        """In seconds, of all requests or of those for some adapters."""
        times = sorted(seconds for name, seconds in self.first_s if among is None or name in among)
        return times[min(len(times) - 1, int(share * len(times)))]


class Load:
    """Requests, against one engine in this process."""

    def __init__(
        self, handle: EngineHandle, threads: EngineThreads, sizes: Sizes | None = None, *, seed: int = 0
    ) -> None:
        self._handle = handle
        self._threads = threads
        self._sizes = sizes or Sizes()
        self._rng = random.Random(seed)

    def closed(self, names: Sequence[str], weights: Sequence[float], num_requests: int) -> Measured:
        """Each client comes with its next request as soon as its last one is answered."""

        async def run() -> Measured:
            todo = iter(self._choose(names, weights, num_requests))
            first: list[tuple[str, float]] = []

            async def client() -> None:
                for name in todo:
                    first.append(await self._ask(name))

            start = time.perf_counter()
            await asyncio.gather(*(client() for _ in range(self._sizes.num_clients)))
            return self._measured(first, time.perf_counter() - start)

        return self._threads.run(run())

    def open(self, names: Sequence[str], weights: Sequence[float], num_requests: int, *, rate: float) -> Measured:
        """Requests that come by themselves, `rate` a second at exponential distances."""

        async def run() -> Measured:
            tasks, start = [], time.perf_counter()
            for name in self._choose(names, weights, num_requests):
                await asyncio.sleep(self._rng.expovariate(rate))
                tasks.append(asyncio.create_task(self._ask(name)))
            first = await asyncio.gather(*tasks)
            return self._measured(first, time.perf_counter() - start)

        return self._threads.run(run())

    def _choose(self, names: Sequence[str], weights: Sequence[float], count: int) -> list[str]:
        return self._rng.choices(names, cum_weights=list(accumulate(weights)), k=count)

    def _measured(self, first_s: list[tuple[str, float]], seconds: float) -> Measured:
        return Measured(len(first_s) * self._sizes.output / seconds, first_s)

    async def _ask(self, name: str) -> tuple[str, float]:
        """The adapter and the seconds to the first token of one request."""
        prompt = [self._rng.randrange(256) for _ in range(self._sizes.prompt)]
        sampling = SamplingParams(max_tokens=self._sizes.output, temperature=0)
        start, first_s = time.perf_counter(), None
        (stream,) = self._handle.submit([(prompt, sampling)], RequestOptions(adapter=name))
        async with aclosing(stream):
            async for event in stream:
                if event.token_ids and first_s is None:
                    first_s = time.perf_counter() - start
        assert first_s is not None, f"a request for {name} ended without a token"  # noqa: S101 - nothing else is measured
        return name, first_s


def joined(rounds: Sequence[Measured]) -> Measured:
    """The median rate, and all times."""
    return Measured(statistics.median(one.rate for one in rounds), [each for one in rounds for each in one.first_s])
