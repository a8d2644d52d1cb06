"""Many adapters on few slots: 2,000 of them by a Zipf law, and a working set of twice the slots, against a set that fits.

Run as `python -m benchmarks.serving.adapter_tiers`; a tiny random model on the CPU, so that what adapters cost beside the model
shows as large as it can be. Goals: with 2,000 adapters at least 0.9 times the throughput of 16; with twice the slots in use, at
half of the load that the resident set takes, at most 5 times its 99th percentile of the time to the first token.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from benchmarks.serving.adapters import write_adapter
from services.generator.core.request import RequestOptions, SamplingParams
from services.generator.engine.handle import EngineHandle
from services.generator.engine.threads import EngineThreads
from services.generator.settings import GeneratorSettings
from shared.observability.logging import configure_logging
from tests.generator.conftest import save_tiny_llama

NUM_SLOTS = 16
NUM_ROWS = 16
NUM_CLIENTS = 32
NUM_TOKENS = 32
NUM_PROMPT_TOKENS = 16
NUM_ROUNDS = 4
TURN_S = 0.2
"""Slot quantum: an adapter that others wait for keeps its slot this long."""


@dataclass(frozen=True)
class Measured:
    """Tokens per second, and the times to the first token in seconds, sorted."""

    rate: float
    first_s: list[float]

    def percentile(self, share: float) -> float:
        """In seconds."""
        return self.first_s[min(len(self.first_s) - 1, int(share * len(self.first_s)))]


class Load:
    """Requests for adapters by name, against one engine in this process."""

    def __init__(self, handle: EngineHandle, threads: EngineThreads, seed: int = 0) -> None:
        self._handle = handle
        self._threads = threads
        self._rng = random.Random(seed)

    def closed(self, names: list[str], weights: list[float], num_requests: int) -> Measured:
        """Twice as many clients as rows, each with its next request as soon as the last one is answered."""

        async def run() -> Measured:
            todo = iter(self._rng.choices(names, cum_weights=list(accumulate(weights)), k=num_requests))
            first: list[float] = []

            async def client() -> None:
                for name in todo:
                    first.append(await self._ask(name))

            start = time.perf_counter()
            await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
            return Measured(num_requests * NUM_TOKENS / (time.perf_counter() - start), sorted(first))

        return self._threads.run(run())

    def open(self, names: list[str], rate: float, num_requests: int) -> Measured:
        """Requests that come by themselves, `rate` a second at exponential distances, each adapter as often as any other."""

        async def run() -> Measured:
            tasks, start = [], time.perf_counter()
            for _ in range(num_requests):
                await asyncio.sleep(self._rng.expovariate(rate))
                tasks.append(asyncio.create_task(self._ask(self._rng.choice(names))))
            first = sorted(await asyncio.gather(*tasks))
            return Measured(num_requests * NUM_TOKENS / (time.perf_counter() - start), first)

        return self._threads.run(run())

    async def _ask(self, name: str) -> float:
        """Seconds to the first token of one request."""
        prompt = [self._rng.randrange(256) for _ in range(NUM_PROMPT_TOKENS)]
        sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
        start, first_s = time.perf_counter(), None
        stream = self._handle.submit(prompt, sampling, RequestOptions(adapter=name))
        async for event in stream:
            if event.token_ids and first_s is None:
                first_s = time.perf_counter() - start
        assert first_s is not None, f"a request for {name} ended without a token"  # noqa: S101 - nothing else is measured
        return first_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.adapter_tiers", description=__doc__)
    parser.add_argument("--adapters", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=1500, help="in each measurement")
    options = parser.parse_args()
    configure_logging("benchmark", "warning", "console")
    with tempfile.TemporaryDirectory() as folder:
        base, root = save_tiny_llama(Path(folder) / "base", eos_token_id=None), Path(folder) / "root"
        root.mkdir()
        names = [f"a{number}" for number in range(options.adapters)]
        for number, name in enumerate(names):
            write_adapter(root / name, number, base)
        settings = GeneratorSettings(
            model=str(base),
            num_threads=1,
            lora_root=[str(root)],
            max_num_seqs=NUM_ROWS,
            max_loras=NUM_SLOTS,
            max_lora_rank=8,
            lora_max_wait=TURN_S,
            log_level="warning",
        )
        handle = EngineHandle(settings.max_queued_requests)
        start = time.perf_counter()
        threads = EngineThreads(settings, handle)
        sys.stdout.write(f"{len(names)} adapters listed, engine ready after {time.perf_counter() - start:.1f} s\n")
        try:
            measure(Load(handle, threads), names, options.requests)
            sys.stdout.write(f"{handle.adapter_view.counts}\n")
        finally:
            threads.stop()


def measure(load: Load, names: list[str], num_requests: int) -> None:
    """The four measurements, which take turns, so that a busy machine slows all of them; a set is used before it counts."""
    few, twice = names[:NUM_SLOTS], names[: 2 * NUM_SLOTS]
    zipf = [1 / rank for rank in range(1, len(names) + 1)]
    share = num_requests // NUM_ROUNDS
    load.closed(few, zipf[:NUM_SLOTS], NUM_SLOTS * 4)
    resident, many, fits, over = [], [], [], []
    for _ in range(NUM_ROUNDS):
        resident.append(load.closed(few, zipf[:NUM_SLOTS], share))
        many.append(load.closed(names, zipf, share))
        rate = min(one.rate for one in resident) / NUM_TOKENS / 2
        load.closed(twice, [1.0] * len(twice), len(twice))
        over.append(load.open(twice, rate, share))
        load.closed(few, [1.0] * NUM_SLOTS, NUM_SLOTS)
        fits.append(load.open(few, rate, share))
    say(f"{NUM_SLOTS} adapters, Zipf", resident)
    say(f"{len(names)} adapters, Zipf", many)
    ratio = statistics.median(one.rate / other.rate for one, other in zip(many, resident, strict=True))
    sys.stdout.write(f"throughput {ratio:.2f} of that of {NUM_SLOTS} adapters\n")
    say(f"{NUM_SLOTS} in use, open loop", fits)
    say(f"{2 * NUM_SLOTS} in use, the same load", over)
    ratio = joined(over).percentile(0.99) / joined(fits).percentile(0.99)
    sys.stdout.write(f"p99 of the first token {ratio:.1f} times; slot quantum {TURN_S} s\n")


def joined(rounds: list[Measured]) -> Measured:
    """The median rate, and all times."""
    return Measured(
        statistics.median(one.rate for one in rounds), sorted(first for one in rounds for first in one.first_s)
    )


def say(what: str, rounds: list[Measured]) -> None:
    """One line."""
    measured = joined(rounds)
    median_ms, p99_ms = (measured.percentile(share) * 1000 for share in (0.5, 0.99))
    sys.stdout.write(
        f"{what:<45} {measured.rate:8.0f} tok/s   first token {median_ms:6.1f} ms median, {p99_ms:6.1f} ms p99\n"
    )


if __name__ == "__main__":
    main()
