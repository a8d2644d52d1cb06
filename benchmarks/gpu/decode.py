"""Time of a decode step, through `LLM.generate`: (time for 129 tokens - time for 1) / 128."""

import random
import statistics
import time

from benchmarks.gpu.model import VOCAB_SIZE
from services.generator.llm import LLM

PROMPT_LEN = 128
NUM_STEPS = 128


def random_prompts(count: int, length: int = PROMPT_LEN) -> list[list[int]]:
    """Prompts that no prefix cache has seen."""
    return [[random.randrange(VOCAB_SIZE) for _ in range(length)] for _ in range(count)]


GREEDY = {"temperature": 0, "ignore_eos": True}


def step_ms(llm: LLM, num_rows: int, adapters: list[str], num_runs: int = 3) -> float:
    """Milliseconds of a decode step of `num_rows` rows, the median of some runs after a warm-up; row i uses adapter i mod n."""
    names = spread(adapters, num_rows)
    for num_tokens in (1, 4):
        _seconds(llm, num_rows, names, num_tokens)
    runs = [
        _seconds(llm, num_rows, names, NUM_STEPS + 1) - min(_seconds(llm, num_rows, names, 1) for _ in range(2))
        for _ in range(num_runs)
    ]
    return statistics.median(runs) / NUM_STEPS * 1000


def spread(adapters: list[str], count: int) -> list[str] | None:
    """An adapter for each of `count` prompts, in turn."""
    return [adapters[index % len(adapters)] for index in range(count)] if adapters else None


def prefill_rate(llm: LLM, num_prompts: int, length: int, adapters: list[str], num_runs: int = 4) -> float:
    """Thousands of prompt tokens a second, the median of some runs after a warm-up."""
    times = []
    for _ in range(num_runs):
        prompts = random_prompts(num_prompts, length)
        began = time.perf_counter()
        llm.generate(prompts, {"max_tokens": 1, **GREEDY}, lora=spread(adapters, num_prompts))
        times.append(time.perf_counter() - began)
    return num_prompts * length / statistics.median(times[1:]) / 1000


def _seconds(llm: LLM, num_rows: int, names: list[str] | None, num_tokens: int) -> float:
    prompts = random_prompts(num_rows)
    began = time.perf_counter()
    answers = llm.generate(prompts, {"max_tokens": num_tokens, **GREEDY}, lora=names)
    seconds = time.perf_counter() - began
    if any(len(answer.choices[0].token_ids) != num_tokens for answer in answers):
        raise RuntimeError(f"an answer does not have {num_tokens} tokens")
    return seconds
