"""`python -m benchmarks.gpu.over_http`: some steps of the table once more, as clients of the service see them.

Starts `services.generator` with the table's model and streams as many completions at once from this process, so that the figures
hold the API process, two sockets and the client's own work too. Where the API process falls behind, several tokens come in one
event: it says how many events there were. `--tiny` tries the program without a GPU and writes nothing.
"""

import asyncio
import json
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.decode import GREEDY, NUM_STEPS, PROMPT_LEN, in_turn, random_prompts, step_ms
from benchmarks.gpu.model import CONFIG, TINY, write_adapters, write_model
from benchmarks.gpu.results import Results, parser_of
from benchmarks.gpu.rows import ADAPTERS, NUM_SLOTS
from benchmarks.gpu.start import scratch_folder
from benchmarks.serving.services import running, service
from services.generator.core.launch import Launch

ROWS = {
    "base, B=64 over HTTP": (64, {}),
    "base, B=256 over HTTP": (256, {}),
    f"{NUM_SLOTS} adapters, B=64 over HTTP": (64, ADAPTERS),
}
"""name: completions at once, and the rank of each adapter by its name."""


def main() -> None:
    """Run both rows."""
    options = parser_of("gpu.over_http", "Times the generator as its clients see it.", rows="*HTTP").parse_args()
    results = Results(options, "generator-gpu.jsonl")
    for name, (num_rows, ranks) in ROWS.items():
        if results.wants(name):
            _run(results, name, num_rows, ranks, is_tiny=options.tiny)
    results.check_any()


def _run(results: Results, row: str, num_rows: int, ranks: dict[str, int], *, is_tiny: bool) -> None:
    config, num_steps = (TINY, 4) if is_tiny else (CONFIG, NUM_STEPS)
    events_per_token: list[float] = []
    with scratch_folder() as folder:
        model = write_model(folder / "model", config)
        lora = write_adapters(folder, config, ranks)
        generator = service("generator", *_flags(model, num_rows, lora))
        names = [name or model.name for name in in_turn(list(ranks), num_rows)]
        with running(generator):

            def seconds(num_tokens: int) -> float:
                took, num_events = asyncio.run(_answer_all(generator.port, names, config, num_tokens))
                if num_tokens > num_steps:
                    events_per_token.append(num_events / num_rows / num_tokens)
                return took

            results.measure(row, partial(step_ms, seconds, num_steps=num_steps), lambda: _num_steps(generator.url))
            sys.stdout.write(f"{row:52} {statistics.median(events_per_token):.2f} events a token\n")


def _flags(model: Path, num_rows: int, lora: Sequence[str]) -> list[str]:
    flags = ["--model", str(model), "--load-format", "dummy", "--dtype", "bfloat16", "--max-num-seqs", str(num_rows)]
    flags += ["--max-model-len", "4096", "--gpu-memory-utilization", "0.75", "--log-level", "warning"]
    bank = ["--max-loras", str(NUM_SLOTS), "--max-lora-rank", str(max(ADAPTERS.values()))]
    return flags + bank + [part for each in lora for part in ("--lora", each)] if lora else flags


async def _answer_all(port: int, names: Sequence[str], config: dict[str, Any], num_tokens: int) -> tuple[float, int]:
    """Seconds until the last of the streams has ended, and events with text in all of them."""
    prompts = random_prompts(len(names), PROMPT_LEN, config["vocab_size"])
    requests = [_request(name, prompt, num_tokens) for name, prompt in zip(names, prompts, strict=True)]
    began = time.perf_counter()
    answers = await asyncio.gather(*(_answer(port, request) for request in requests))
    seconds = time.perf_counter() - began
    for answer in answers:
        counts = re.findall(rb'"completion_tokens": ?(\d+)', answer)
        if b"data: [DONE]" not in answer or not counts or int(counts[-1]) != num_tokens:
            raise RuntimeError(f"not {num_tokens} tokens: {answer[-500:]!r}")
    return seconds, sum(answer.count(b'"text"') for answer in answers)


def _request(name: str, prompt: list[int], num_tokens: int) -> bytes:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({"model": name, "prompt": prompt, "max_tokens": num_tokens, **GREEDY, **stream}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _answer(port: int, request: bytes) -> bytes:
    """All bytes of the answer: a client that does less than any other, so that it is the service that is timed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def _num_steps(url: str) -> dict[Launch, int]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        text = response.read().decode()
    found = re.findall(r'^trivium_generator_steps_total\{launch="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {Launch(launch): int(float(count)) for launch, count in found}


if __name__ == "__main__":
    main()
