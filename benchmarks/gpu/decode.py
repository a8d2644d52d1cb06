"""The workload of the GPU benchmarks and its figures: a decode step is (time for 129 tokens - time for 1) / 128."""

import random
import time
from collections.abc import Callable, Mapping, Sequence

from services.generator.llm import LLM

PROMPT_LEN = 128
NUM_STEPS = 128
GREEDY = {"temperature": 0, "ignore_eos": True}
MS_PER_S = 1000

Prompts = list[list[int]]


def step_ms(seconds: Callable[[int], float], *, num_steps: int = NUM_STEPS, num_runs: int = 3) -> list[float]:
    """Milliseconds of a decode step in each of some runs, after a warm-up.

    Args:
        seconds: how long it takes to answer the prompts with so many tokens each.
    """
    seconds(4)
    runs = [seconds(num_steps + 1) - min(seconds(1) for _ in range(2)) for _ in range(num_runs)]
    return [run / num_steps * MS_PER_S for run in runs]


def in_turn(adapters: Sequence[str], count: int) -> list[str | None]:
    """An adapter for each of `count` prompts; row i uses adapter i mod n, or the base model where there is none."""
    return [adapters[index % len(adapters)] if adapters else None for index in range(count)]


class Workload:
    """Random prompts for one engine.

    Args:
        vocab_size: ids to draw from.
    """

    def __init__(self, llm: LLM, vocab_size: int) -> None:
        self._llm = llm
        self._vocab_size = vocab_size

    def prompts(self, count: int, length: int = PROMPT_LEN) -> Prompts:
        """Prompts that no prefix cache has seen."""
        return random_prompts(count, length, self._vocab_size)

    def step_ms(
        self,
        num_rows: int,
        adapters: Sequence[str],
        sampling: Mapping[str, float],
        *,
        num_steps: int = NUM_STEPS,
    ) -> list[float]:
        """Milliseconds of a decode step in each run; `sampling` stands in place of greedy fields."""

        def seconds(num_tokens: int) -> float:
            return self._seconds(self.prompts(num_rows), adapters, num_tokens, sampling)

        return step_ms(seconds, num_steps=num_steps)

    def prefill_rates(self, num_prompts: int, length: int, adapters: Sequence[str], num_runs: int = 3) -> list[float]:
        """Thousands of prompt tokens a second in each of some runs, after a warm-up."""
        times = [self._seconds(self.prompts(num_prompts, length), adapters, 1, {}) for _ in range(1 + num_runs)]
        return [num_prompts * length / seconds / 1000 for seconds in times[1:]]

    def _seconds(
        self, prompts: Prompts, adapters: Sequence[str], num_tokens: int, sampling: Mapping[str, float]
    ) -> float:
        names = in_turn(adapters, len(prompts))
        began = time.perf_counter()
        answers = self._llm.generate(prompts, {"max_tokens": num_tokens, **GREEDY, **sampling}, lora=names)
        seconds = time.perf_counter() - began
        if any(len(answer.choices[0].token_ids) != num_tokens for answer in answers):
            raise RuntimeError(f"an answer does not have {num_tokens} tokens")
        return seconds


def random_prompts(count: int, length: int, vocab_size: int) -> Prompts:
    """Ids at random; no two calls answer the same."""
    return [[random.randrange(vocab_size) for _ in range(length)] for _ in range(count)]
