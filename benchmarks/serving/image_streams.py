"""Streams of text on a running service, alone and beside requests with new images that all come at once.

Called by `benchmarks.serving.images`. Both take turns while the streams go on, so that a busy machine slows both.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from benchmarks.serving.load import percentile
from benchmarks.serving.metrics_reader import read_metrics
from benchmarks.serving.photos import chat_body, photo

CACHE_ROWS = 1024
"""--encoder-cache-size of the service: less than all images have together, so that they have to take each other's place."""

NUM_STREAMS = 4
NUM_IMAGES = 5
ALONE_S = 5.0
POLL_S = 0.1


@dataclass
class Seen:
    """What the streams and the service showed.

    Attributes:
        has_images: whether requests with images are there now.
        gaps_s: seconds between two tokens of a stream, apart by whether images were there when the second came.
        max_rows: most rows of images that were held at one time.
    """

    has_images: bool = False
    gaps_s: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    max_rows: int = 0


def compare_streams(label: str, url: str, pid: int, rounds: int, write: Callable[[str], None]) -> None:
    """Print the time between tokens without and with images, and what the engine holds before and after."""
    before = _engine_mib(pid)
    seen = asyncio.run(_run(url, rounds))
    write(f"{NUM_STREAMS} streams of text, {label}: milliseconds between tokens, median and 99th percentile")
    figures = {
        there: [percentile(gaps, share) * 1000 for share in (50, 99)] + [len(gaps)]
        for there, gaps in seen.gaps_s.items()
    }
    for name, there in (("alone", False), (f"beside {NUM_IMAGES} images", True)):
        median, last, count = figures[there]
        write(f"  {name:<18} {median:8.1f} {last:8.1f}   of {count}")
    ratios = [one / other for one, other in zip(figures[True], figures[False], strict=True)]
    write(f"  ratio              {ratios[0]:8.2f} {ratios[1]:8.2f}")
    write(f"  rows of images held: at most {seen.max_rows} of {CACHE_ROWS}")
    write(f"  resident memory of the engine: {before:.0f} MiB before, {_engine_mib(pid):.0f} MiB after")
    if seen.max_rows > CACHE_ROWS:
        raise SystemExit("more rows were held than --encoder-cache-size")


async def _run(url: str, rounds: int) -> Seen:
    seen = Seen()
    bodies = [
        chat_body(f"{number}, of many:", [(photo(100 + number, "JPEG"), "JPEG")], 8)
        for number in range(rounds * NUM_IMAGES)
    ]
    async with httpx.AsyncClient(base_url=url, timeout=300) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(_stream(client, seen, seed)) for seed in range(NUM_STREAMS)]
        tasks.append(group.create_task(_watch_rows(url, seen)))
        for start in range(0, len(bodies), NUM_IMAGES):
            await asyncio.sleep(ALONE_S)
            seen.has_images = True
            await asyncio.gather(*(_ask(client, body) for body in bodies[start : start + NUM_IMAGES]))
            seen.has_images = False
        for task in tasks:
            task.cancel()
    return seen


async def _ask(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    (await client.post("/v1/chat/completions", json=body)).raise_for_status()


async def _stream(client: httpx.AsyncClient, seen: Seen, seed: int) -> None:
    """One short request for text after another."""
    rng = random.Random(seed)
    options = {"max_tokens": 64, "temperature": 0, "ignore_eos": True, "stream": True}
    while True:
        body = {"prompt": [rng.randrange(100, 40_000) for _ in range(16)], **options}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            last = None
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.perf_counter()
                if last is not None:
                    seen.gaps_s[seen.has_images].append(now - last)
                last = now


async def _watch_rows(url: str, seen: Seen) -> None:
    while True:
        metrics = await asyncio.to_thread(read_metrics, url)
        seen.max_rows = max(seen.max_rows, int(metrics["image_rows"]))
        await asyncio.sleep(POLL_S)


def _engine_mib(pid: int) -> float:
    """Resident memory of the largest child of the API process."""
    return float(max(child.memory_info().rss for child in psutil.Process(pid).children())) / 2**20
