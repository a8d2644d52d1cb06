"""Eight concurrent chats through the gateway against `transformers` answering the same prompts one after another.

Run as `python -m benchmarks.serving.chat`; prints a table whose last column is the ratio. Both take turns in one run on the same
weights in fp32, so that only the ratio counts and a busy machine slows both. Goal: at least 4 times, aim for 5.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import openai

from benchmarks.serving.services import Service, running, service

MODEL = "models/smollm2-135m-instruct"
NUM_TOKENS = 64
TOPICS = (
    "a lighthouse", "the sea", "a long winter", "a clockmaker", "two rivers", "an old bridge", "a lost map", "a garden"
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What one side did in one round."""

    num_tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.seconds


def prompts() -> list[str]:
    """One request for a text that is far longer than the limit, for each topic."""
    return [f"Write a very long and detailed story about {topic}." for topic in TOPICS]


async def ours(url: str) -> Measured:
    """All chats at once through the gateway."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600) as client:

        async def chat(prompt: str) -> int:
            answer = await client.chat.completions.create(
                model="smollm2-135m-instruct",
                messages=[{"role": "user", "content": prompt}],
                max_tokens=NUM_TOKENS,
                temperature=0,
            )
            assert answer.usage is not None  # noqa: S101 - always sent
            return answer.usage.completion_tokens

        start = time.perf_counter()
        counts = await asyncio.gather(*(chat(prompt) for prompt in prompts()))
        return Measured(sum(counts), time.perf_counter() - start)


class Reference:
    """`transformers` in a process of its own, which sleeps while the other side is measured."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.serving.chat", "--reference"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self) -> Measured:
        """One round over all prompts, one after another."""
        assert self._process.stdin is not None  # noqa: S101 - made with pipes
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return Measured(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve_reference() -> None:
    """Answer one line on standard output for each line on standard input."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(os.cpu_count() or 1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def generate(prompt: str) -> int:
        inputs: Any = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = model.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False)
        return int(output.shape[1] - inputs["input_ids"].shape[1])

    generate("Hello")
    for _ in sys.stdin:
        start = time.perf_counter()
        count = sum(generate(prompt) for prompt in prompts())
        print(json.dumps({"num_tokens": count, "seconds": time.perf_counter() - start}), flush=True)


def compare(gateway: Service, rounds: int) -> None:
    """Take turns and print each round and the medians."""
    reference = Reference()
    asyncio.run(ours(gateway.url))  # warm-up; the reference warms itself up
    rows: list[tuple[Measured, Measured]] = []
    print(f"{'round':>6} {'ours tok/s':>12} {'transformers tok/s':>20} {'ratio':>7}")
    for index in range(rounds):
        rows.append((asyncio.run(ours(gateway.url)), reference.measure()))
        a, b = rows[-1]
        print(f"{index + 1:>6} {a.rate:>12.1f} {b.rate:>20.1f} {a.rate / b.rate:>7.2f}", flush=True)
    medians = [statistics.median(row[side].rate for row in rows) for side in (0, 1)]
    ratio = statistics.median(a.rate / b.rate for a, b in rows)
    print(f"{'median':>6} {medians[0]:>12.1f} {medians[1]:>20.1f} {ratio:>7.2f}   goal: at least 4, aim for 5")
    reference.close()


def main() -> None:
    """Parse, start the services, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reference", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reference:
        serve_reference()
        return
    generator = service("generator", "--model", MODEL)
    gateway = service("gateway", "--generator-url", generator.url, started_path="/health")
    with running(generator, gateway):
        compare(gateway, arguments.rounds)


if __name__ == "__main__":
    main()
