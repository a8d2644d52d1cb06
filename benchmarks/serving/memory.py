"""Memory of the generator's API process over 5,000 requests, a fifth of them given up by their clients.

Run as `python -m benchmarks.serving.memory`; prints the resident memory after each fifth. Goal: what is there after the first
fifth, which fills caches and pools, stays the same within 5 %.
"""

import asyncio
import random
import sys

import httpx
import psutil

from benchmarks.serving.services import running, service

MODEL = "models/smollm2-135m-instruct"
NUM_REQUESTS = 5_000
NUM_CLIENTS = 32
NUM_PARTS = 5
TOLERANCE = 0.05


async def one(client: httpx.AsyncClient, number: int) -> None:
    """A short completion, or a long stream that its client leaves after the first chunk."""
    prompt = [random.Random(number).randrange(1, 49_000) for _ in range(4)]
    if number % NUM_PARTS:
        answer = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
        answer.raise_for_status()
        return
    body = {"prompt": prompt, "max_tokens": 512, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as stream:
        async for _ in stream.aiter_lines():
            return


async def part(url: str, numbers: range) -> None:
    """`numbers` shared out among the clients."""
    left = iter(numbers)

    async def work(client: httpx.AsyncClient) -> None:
        for number in left:
            await one(client, number)

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await asyncio.gather(*(work(client) for _ in range(NUM_CLIENTS)))


def main() -> None:
    """Measure and print."""
    generator = service("generator", "--model", MODEL, "--max-model-len", "1024")
    with running(generator) as pids:
        size = NUM_REQUESTS // NUM_PARTS
        levels = []
        for start in range(0, NUM_REQUESTS, size):
            asyncio.run(part(generator.url, range(start, start + size)))
            levels.append(psutil.Process(pids["generator"]).memory_info().rss / 2**20)
            sys.stdout.write(f"API process after {start + size} requests: {levels[-1]:7.1f} MiB\n")
    growth = levels[-1] / levels[0] - 1
    sys.stdout.write(f"change since the first fifth: {growth:+.1%} (goal: within {TOLERANCE:.0%})\n")


if __name__ == "__main__":
    main()
