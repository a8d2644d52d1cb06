"""Time of a decode step, through `LLM.generate`: (time for 129 tokens - time for 1) / 128, the better of two."""

import random
import time

from benchmarks.gpu.model import VOCAB_SIZE
from services.generator.llm import LLM

PROMPT_LEN = 128
NUM_STEPS = 128


def random_prompts(count: int, length: int = PROMPT_LEN) -> list[list[int]]:
    """Prompts that no prefix cache has seen."""
    return [[random.randrange(VOCAB_SIZE) for _ in range(length)] for _ in range(count)]


def step_ms(llm: LLM, num_rows: int, adapters: list[str | None]) -> float:
    """Milliseconds of a decode step of `num_rows` rows; row i uses adapter i mod n."""
    lora = [adapters[index % len(adapters)] for index in range(num_rows)] if adapters else None
    return min(_seconds(llm, num_rows, lora) for _ in range(2)) / NUM_STEPS * 1000


def _seconds(llm: LLM, num_rows: int, lora: list[str | None] | None) -> float:
    times = []
    for num_tokens in (1, NUM_STEPS + 1):
        prompts = random_prompts(num_rows)
        began = time.perf_counter()
        answers = llm.generate(prompts, {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}, lora=lora)
        times.append(time.perf_counter() - began)
        assert all(len(answer.choices[0].token_ids) == num_tokens for answer in answers)
    return times[1] - times[0]
