"""Load on a running server, through HTTP: `python -m benchmarks.serving.load --url http://127.0.0.1:8000 --model NAME`.

Requests arrive by a rate (open loop, exponential distances) or by a number of clients (closed loop); lengths are lognormal,
adapters follow a Zipf law, prompts may share a prefix. Prints throughput, time to first token, time between tokens, and goodput:
the requests a second that kept both limits. Any server with `/v1/completions` that takes token ids will do.
"""

import argparse
import asyncio
import json
import math
import random
import time
from dataclasses import dataclass
from itertools import accumulate

import aiohttp

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Job:
    """One request."""

    model: str
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Answer:
    """How it went: seconds to the first token, seconds a token after it, tokens; an error's text instead where it failed."""

    first_s: float = math.inf
    each_s: float = math.inf
    num_tokens: int = 0
    error: str | None = None


def make_jobs(options: argparse.Namespace) -> list[Job]:
    """The same for the same options and seed."""
    rng = random.Random(options.seed)
    models = [options.model, *options.adapters.split(",")] if options.adapters else [options.model]
    weights = list(accumulate(1 / rank**options.zipf for rank in range(1, len(models) + 1)))
    shared = [rng.randrange(options.vocab_size) for _ in range(options.shared_prefix)]

    def length(median: int) -> int:
        return max(1, min(round(rng.lognormvariate(math.log(median), options.sigma)), 8 * median))

    return [
        Job(
            rng.choices(models, cum_weights=weights)[0],
            shared + [rng.randrange(options.vocab_size) for _ in range(length(options.prompt_tokens))],
            length(options.output_tokens),
        )
        for _ in range(options.requests)
    ]


async def ask(session: aiohttp.ClientSession, url: str, job: Job) -> Answer:
    """Stream one answer."""
    body = {
        "model": job.model,
        "prompt": job.prompt,
        "max_tokens": job.max_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    options = {"stream": True, "stream_options": {"include_usage": True}}
    began, first, last, count = time.perf_counter(), None, 0.0, 0
    try:
        async with session.post(f"{url}/v1/completions", json={**body, **options}) as response:
            if response.status != 200:
                return Answer(error=f"{response.status}: {(await response.text())[:200]}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    return Answer(error=str(event["error"])[:200])
                count = (event.get("usage") or {}).get("completion_tokens", count)
                if event["choices"]:
                    last = time.perf_counter()
                    first = first or last
    except aiohttp.ClientError as error:
        return Answer(error=repr(error))
    if first is None:
        return Answer(error="no token came")
    return Answer(first - began, (last - first) / max(1, count - 1), count)


async def run(options: argparse.Namespace, jobs: list[Job]) -> tuple[list[Answer], float]:
    """All answers, and the seconds that they took together."""
    rng = random.Random(options.seed)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        began = time.perf_counter()
        if options.rate is not None:
            tasks = []
            for job in jobs:
                tasks.append(asyncio.create_task(ask(session, options.url, job)))
                await asyncio.sleep(rng.expovariate(options.rate))
            answers = await asyncio.gather(*tasks)
        else:
            todo, answers = iter(jobs), []

            async def client() -> None:
                for job in todo:
                    answers.append(await ask(session, options.url, job))

            await asyncio.gather(*(client() for _ in range(options.concurrency)))
        return answers, time.perf_counter() - began


def report(answers: list[Answer], seconds: float, options: argparse.Namespace) -> dict[str, float]:
    """The figures, by name."""
    good = [answer for answer in answers if answer.error is None]
    kept = [a for a in good if a.first_s * 1000 <= options.slo_first_ms and a.each_s * 1000 <= options.slo_each_ms]
    figures = {
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "requests/s": len(good) / seconds,
        "tokens/s": sum(answer.num_tokens for answer in good) / seconds,
        "goodput, requests/s": len(kept) / seconds,
    }
    for name, values in (("first token", [a.first_s for a in good]), ("each token", [a.each_s for a in good])):
        for share in PERCENTILES if good else ():
            figures[f"{name} p{share}, ms"] = percentile(values, share) * 1000
    return figures


def percentile(values: list[float], share: int) -> float:
    """The smallest value that `share` per cent of all do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share / 100) - 1)]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.load", description="Load on a running server.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--adapters", default="", help="names, the most popular first; the model itself comes before them"
    )
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of their popularity; 0 for all alike")
    parser.add_argument("--requests", type=int, default=256)
    arrival = parser.add_mutually_exclusive_group()
    arrival.add_argument("--rate", type=float, help="requests a second")
    arrival.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=128, help="median")
    parser.add_argument("--output-tokens", type=int, default=64, help="median")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the lognormal lengths; 0 for all alike")
    parser.add_argument("--shared-prefix", type=int, default=0, help="tokens with which every prompt begins")
    parser.add_argument("--vocab-size", type=int, default=1000, help="prompts are random ids below it")
    parser.add_argument("--slo-first-ms", type=float, default=500.0)
    parser.add_argument("--slo-each-ms", type=float, default=50.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main() -> None:
    """Run and print."""
    options = parse()
    answers, seconds = asyncio.run(run(options, make_jobs(options)))
    for name, value in report(answers, seconds, options).items():
        print(f"{name:24} {value:12.2f}")
    for error in sorted({answer.error for answer in answers if answer.error is not None})[:5]:
        print(f"failed: {error}")


if __name__ == "__main__":
    main()
