"""What the scheduler costs by itself: a step of 256 sequences, a prefix lookup of 8,000 tokens, hits on a shared prompt.

Run as `python -m benchmarks.engine.scheduling`; prints a table. No model: the runner answers zeros, so the times are those of
`schedule` and `commit` alone. Goals: at most 1 ms for each of the first two, at least 95 % of prompt tokens from the cache.
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from services.generator.core.block_keys import BlockKeys, PrefixSalt
from services.generator.core.plan import StepPlan, StepResult
from services.generator.core.request import Request, SamplingParams
from services.generator.core.sequence import Sequence
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from services.generator.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
VOCAB_SIZE = 49_152
NUM_ROWS = 256
NUM_STEPS = 300
LONG_PROMPT = 8_000
NUM_SHARING = 2_000
SHARED_LEN, TAIL_LEN = 1_000, 32
MS_PER_S = 1000


def make_scheduler(num_blocks: int) -> Scheduler:
    """A scheduler with a prefix cache over `num_blocks` blocks."""
    limits = SchedulerLimits(NUM_ROWS, max_num_batched_tokens=8192, max_model_len=16_384, vocab_size=VOCAB_SIZE)
    return Scheduler(limits, KVCacheManager(KVCacheSpec(num_blocks, BLOCK_SIZE), make_keys()))


def make_keys() -> BlockKeys:
    """Keys of some model."""
    return BlockKeys(b"\0" * 32, "torch.bfloat16", BLOCK_SIZE)


def request(number: int, prompt: list[int], max_tokens: int) -> Request:
    """A greedy request without a stop."""
    return Request("benchmark", number, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))


def answer(plan: StepPlan) -> StepResult:
    """What a device would send back."""
    return StepResult(plan.step_id, np.zeros(len(plan.sampled), np.int32))


def step(scheduler: Scheduler) -> None:
    """One step, committed at once."""
    plan = scheduler.schedule()
    if plan is not None:
        scheduler.commit(plan, answer(plan))


def milliseconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * MS_PER_S


def decode_step_ms() -> list[float]:
    """Steps of `NUM_ROWS` decoding sequences, one plan ahead of the one that is committed."""
    rng = np.random.default_rng(0)
    scheduler = make_scheduler(num_blocks=NUM_ROWS * 64)
    for number in range(NUM_ROWS):
        scheduler.submit(request(number, rng.integers(VOCAB_SIZE, size=128).tolist(), max_tokens=800))
    for _ in range(8):
        step(scheduler)
    ahead = [scheduler.schedule()]

    def one() -> None:
        ahead.append(scheduler.schedule())
        plan = ahead.pop(0)
        assert plan is not None and len(plan.rows) == NUM_ROWS  # noqa: S101, PT018 - otherwise this measures less
        scheduler.commit(plan, answer(plan))

    return [milliseconds(one) for _ in range(NUM_STEPS)]


def lookup_ms() -> list[float]:
    """A prompt of `LONG_PROMPT` tokens that is found whole, its keys computed anew each time."""
    prompt = np.random.default_rng(1).integers(VOCAB_SIZE, size=LONG_PROMPT).tolist()
    manager = KVCacheManager(KVCacheSpec(2 * LONG_PROMPT // BLOCK_SIZE, BLOCK_SIZE), make_keys())
    first = Sequence(request(0, prompt, 1), salt=PrefixSalt())
    manager.grow(first, LONG_PROMPT)
    first.num_computed_tokens = LONG_PROMPT
    manager.publish(first)
    times = []
    for number in range(1, 101):
        sequence = Sequence(request(number, prompt, 1), salt=PrefixSalt())
        times.append(milliseconds(lambda sequence=sequence: manager.attach_prefix(sequence)))
        assert sequence.num_computed_tokens >= LONG_PROMPT - BLOCK_SIZE  # noqa: S101 - otherwise nothing was found
        manager.free(sequence)
    return times


def shared_prompt_hits() -> float:
    """Part of the prompt tokens that come from the cache when `NUM_SHARING` requests begin alike, the first aside."""
    rng = np.random.default_rng(2)
    shared = rng.integers(VOCAB_SIZE, size=SHARED_LEN).tolist()
    scheduler = make_scheduler(num_blocks=16_384)
    num_queried = num_hits = 0
    for number in range(NUM_SHARING):
        scheduler.submit(request(number, shared + rng.integers(VOCAB_SIZE, size=TAIL_LEN).tolist(), max_tokens=16))
        step(scheduler)
        if number == 0:
            num_queried = scheduler.stats().num_prefix_queried_tokens
            num_hits = scheduler.stats().num_prefix_hit_tokens
    while scheduler.has_work:
        step(scheduler)
    stats = scheduler.stats()
    return (stats.num_prefix_hit_tokens - num_hits) / (stats.num_prefix_queried_tokens - num_queried)


def main() -> None:
    """Measure and print."""
    rows = [
        (f"schedule + commit, {NUM_ROWS} decoding sequences, median of {NUM_STEPS}", decode_step_ms()),
        (f"prefix lookup of {LONG_PROMPT} tokens, found whole, median of 100", lookup_ms()),
    ]
    for name, times in rows:
        sys.stdout.write(f"{name:<66} {statistics.median(times):7.2f} ms   (goal: at most 1)\n")
    name = f"{NUM_SHARING} requests with {SHARED_LEN} shared and {TAIL_LEN} own prompt tokens, from the cache"
    sys.stdout.write(f"{name:<66} {shared_prompt_hits():7.1%}      (goal: at least 95 %)\n")


if __name__ == "__main__":
    main()
