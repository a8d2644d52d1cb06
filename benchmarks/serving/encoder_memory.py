"""Memory of embedder and reranker over 20,000 mixed requests to both, a tenth of them given up by their clients.

Run as `python -m benchmarks.serving.encoder_memory`; prints the resident memory of both after each fifth. Goal: what is there after
the first fifth, which fills caches and pools, stays the same within 5 %.
"""

import argparse
import asyncio
import random
import sys

import httpx
import psutil

from benchmarks.serving.embeddings import WORDS
from benchmarks.serving.memory import TOLERANCE
from benchmarks.serving.services import Service, running, service

NUM_CLIENTS = 16
NUM_PARTS = 5
SHARE_LEFT = 0.1
LEAVE_S = 0.005


def text(rng: random.Random) -> str:
    """Mostly short, now and then as long as the model takes."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.choice([1, 5, 5, 5, 20, 20, 150])))


async def one(embedder: httpx.AsyncClient, reranker: httpx.AsyncClient, number: int) -> None:
    """An embedding or a rerank request, of some texts; now and then given up."""
    rng = random.Random(number)
    texts = [text(rng) for _ in range(rng.randint(1, 4))]
    timeout = LEAVE_S if rng.random() < SHARE_LEFT else 120
    try:
        if number % 2:
            answer = await embedder.post("/v1/embeddings", json={"input": texts}, timeout=timeout)
        else:
            body = {"query": text(rng)[:100], "documents": texts}
            answer = await reranker.post("/rerank", json=body, timeout=timeout)
    except httpx.TimeoutException:
        return
    answer.raise_for_status()


async def part(embedder: Service, reranker: Service, numbers: range) -> None:
    """`numbers` shared out among the clients."""
    left = iter(numbers)

    async def work(to_embedder: httpx.AsyncClient, to_reranker: httpx.AsyncClient) -> None:
        for number in left:
            await one(to_embedder, to_reranker, number)

    async with (
        httpx.AsyncClient(base_url=embedder.url) as to_embedder,
        httpx.AsyncClient(base_url=reranker.url) as to_reranker,
    ):
        await asyncio.gather(*(work(to_embedder, to_reranker) for _ in range(NUM_CLIENTS)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    threads = ("--num-threads", str(options.threads))
    embedder = service("embedder", "--model", "models/all-minilm-l6-v2", *threads)
    reranker = service("reranker", "--model", "models/minilm-reranker", *threads)
    with running(embedder, reranker) as pids:
        size = options.requests // NUM_PARTS
        levels = []
        for start in range(0, options.requests, size):
            asyncio.run(part(embedder, reranker, range(start, start + size)))
            levels.append([psutil.Process(pids[name]).memory_info().rss / 2**20 for name in ("embedder", "reranker")])
            mine = "   ".join(f"{level:7.1f} MiB" for level in levels[-1])
            sys.stdout.write(f"embedder, reranker after {start + size} requests: {mine}\n")
            sys.stdout.flush()
    growth = "   ".join(f"{last / first - 1:+.1%}" for first, last in zip(levels[0], levels[-1], strict=True))
    sys.stdout.write(f"change since the first fifth: {growth} (goal: within {TOLERANCE:.0%})\n")


if __name__ == "__main__":
    main()
