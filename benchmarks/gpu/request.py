"""`python -m benchmarks.gpu.request`: where the time of one prompt goes, from the call of `LLM.generate` to its answer.

Prints the milliseconds from each point on the way to the next, the median of some prompts that no cache has seen, and how long the
device was at work from the step's first launch to its last. `--tiny` tries the program itself on any machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.decode import GREEDY, MS_PER_S, random_prompts
from benchmarks.gpu.model import CONFIG, TINY
from benchmarks.gpu.rows import BANKS, PREFILL_LEN
from benchmarks.gpu.start import scratch_folder, write_bank
from services.generator.engine.handle import EngineHandle
from services.generator.llm import LLM
from services.generator.runner.model_runner import ModelRunner, SampledStep
from services.generator.scheduler.scheduler import Scheduler

POINTS: list[tuple[type, str, str]] = [
    (EngineHandle, "check_open", "read"),
    (Scheduler, "submit", "received by the engine"),
    (Scheduler, "schedule", "planned"),
    (ModelRunner, "execute", "forward pass launched"),
    (ModelRunner, "sample", "choice of the token launched"),
    (SampledStep, "result", "result waited for"),
    (Scheduler, "commit", "recorded"),
]
"""Each is passed when the method returns for the first time, so that of a prompt of several steps the first counts."""

NUM_WARM, NUM_RUNS = 3, 15


class Marks:
    """When one request passed each point, in seconds, and events on the device about its launches."""

    def __init__(self) -> None:
        self.passed: dict[str, float] = {}
        self.device: list[torch.cuda.Event] = []

    def note(self, name: str) -> None:
        """A point is passed."""
        self.passed.setdefault(name, time.perf_counter())

    def note_device(self) -> None:
        """What was launched so far comes before this on the device."""
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.device.append(event)

    def spans(self) -> dict[str, float]:
        """Milliseconds up to each point from the one before."""
        times = list(self.passed.values())
        ends = list(self.passed.items())[1:]
        spans = {name: (end - begin) * MS_PER_S for (name, end), begin in zip(ends, times, strict=False)}
        if self.device:
            spans["(device, from the first launch to the last)"] = self.device[0].elapsed_time(self.device[-1])
        return {**spans, "(all)": (times[-1] - times[0]) * MS_PER_S}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.request", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a tiny model; the figures mean nothing")
    config = TINY if parser.parse_args().tiny else CONFIG
    marks = Marks()
    with scratch_folder() as folder, ExitStack() as stack:
        llm = stack.enter_context(LLM(**write_bank(BANKS[0], folder, config)))
        for owner, method, name in POINTS:
            stack.enter_context(patch.object(owner, method, _marking(marks, getattr(owner, method), name)))
        runs = [_run(llm, marks, config["vocab_size"]) for _ in range(NUM_WARM + NUM_RUNS)][NUM_WARM:]
    for name in runs[0]:
        print(f"{name:<46} {statistics.median(run[name] for run in runs):8.2f} ms")


def _run(llm: LLM, marks: Marks, vocab_size: int) -> dict[str, float]:
    prompts = random_prompts(1, PREFILL_LEN, vocab_size)
    marks.passed.clear()
    marks.device.clear()
    marks.note("called")
    llm.generate(prompts, {"max_tokens": 1, **GREEDY})
    marks.note("answered")
    return marks.spans()


def _marking(marks: Marks, method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`method`, after which a point is passed; launches are timed on the device too."""
    launches = method in (ModelRunner.execute, ModelRunner.sample)

    def marked(*args: Any, **kwargs: Any) -> Any:
        if launches:
            marks.note_device()
        result = method(*args, **kwargs)
        if launches:
            marks.note_device()
        if result is not None or name != "planned":  # an engine with nothing to do plans nothing
            marks.note(name)
        return result

    return marked


if __name__ == "__main__":
    main()
