"""`python -m benchmarks.gpu.profile --rows "64 adapters, B=64"`: where the time of a decode step goes, by families of kernels.

Traces part of a long answer of all rows at once and looks at what lies between the first and the last greedy choice in it: whole
steps, whose number is that of the choices. Families overlap where kernels begin before the one before ends, so that they add up to
more than the step; `busy` counts such time once. The rank-r side of few tokens is a part of the
products. `--rows` is a pattern for decode rows of the table.
"""

import argparse
import fnmatch
import re
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.decode import GREEDY, Workload, in_turn
from benchmarks.gpu.model import CONFIG
from benchmarks.gpu.rows import BANKS, DecodeRow
from benchmarks.gpu.start import write_bank
from services.generator.llm import LLM

STEP_MARK = "_argmax_kernel"
FAMILIES = (
    ("LoRA, rank-r side", r"lora_shrink"),
    ("LoRA, wide side, with its activation", r"lora_expand|lora_silu_mul"),
    ("attention", r"attention"),
    ("norms, rotary and KV write, activation", r"rms_norm|rope_kv|silu_mul"),
    ("choice of the token, indices, copies", r"argmax|step_indices|[Mm]emcpy|[Mm]emset|index|copy|elementwise"),
    ("products", r"gemm|gemv|nvjet|cutlass|cublas|splitK|xmma"),
)
"""The first whose pattern is in a kernel's name; what fits none is `other`, with its names."""

ANSWER_LEN, BEFORE_S, TRACED_S = 400, 0.6, 0.3


class Span(NamedTuple):
    """One kernel or copy on the device, in microseconds."""

    name: str
    start: float
    end: float


def main() -> None:
    """Profile the decode rows that match."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.profile", description=__doc__)
    parser.add_argument("--rows", default="*, B=64", help="pattern for the names of decode rows")
    pattern = parser.parse_args().rows
    for bank in BANKS:
        rows = [row for row in bank.decodes if fnmatch.fnmatch(row.name, pattern)]
        if rows:
            with (
                tempfile.TemporaryDirectory(prefix="trivium-bench-") as folder,
                LLM(**write_bank(bank, Path(folder), CONFIG)) as llm,
            ):
                for row in rows:
                    print(f"\n{row.name}", *report(_trace(llm, row)), sep="\n", flush=True)


def _trace(llm: LLM, row: DecodeRow) -> list[Span]:
    """What runs on the device while all rows decode."""
    workload, names = Workload(llm, CONFIG["vocab_size"]), in_turn(row.adapters, row.num_rows)

    def decode(num_tokens: int) -> None:
        llm.generate(workload.prompts(row.num_rows), {"max_tokens": num_tokens, **GREEDY}, lora=names)

    with profile(activities=[ProfilerActivity.CUDA]):  # the first one takes long to begin
        decode(4)  # adapters come to their slots
    decoding = threading.Thread(target=decode, args=(ANSWER_LEN,))
    decoding.start()
    time.sleep(BEFORE_S)  # prompts
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        time.sleep(TRACED_S)
    decoding.join()
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    return [Span(event.name, event.time_range.start, event.time_range.end) for event in events]


def report(spans: Iterable[Span]) -> list[str]:
    """Lines of a table: milliseconds a step by family, the step itself, and the share of it in which something runs."""
    spans = sorted(spans, key=lambda span: span.start)
    marks = [span.start for span in spans if STEP_MARK in span.name]
    num_steps = len(marks) - 1
    if num_steps < 1:
        raise SystemExit("no whole step was traced")
    first, last = marks[0], marks[-1]
    within = [span for span in spans if first <= span.start < last]
    families, others = defaultdict[str, float](float), defaultdict[str, float](float)
    for span in within:
        family = family_of(span.name)
        families[family] += span.end - span.start
        if family == "other":
            others[span.name[:60]] += span.end - span.start
    step_us, busy = (last - first) / num_steps, busy_us(within, last) / (last - first)
    lines = [f"{family:42} {total / num_steps / 1000:7.3f} ms" for family, total in _largest(families)]
    lines += [f"  {name:60} {total / num_steps / 1000:7.3f} ms" for name, total in _largest(others)[:5]]
    return [*lines, f"{'step':42} {step_us / 1000:7.3f} ms, mean of {num_steps}; the device is busy for {busy:.1%}"]


def _largest(totals: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(totals.items(), key=lambda item: -item[1])


def family_of(name: str) -> str:
    """The family of a kernel."""
    return next((family for family, pattern in FAMILIES if re.search(pattern, name)), "other")


def busy_us(spans: Iterable[Span], until: float) -> float:
    """Time in which at least one of the spans runs, given in the order of their starts."""
    total, covered = 0.0, float("-inf")
    for span in spans:
        end = min(span.end, until)
        total += max(0.0, end - max(span.start, covered))
        covered = max(covered, end)
    return total


if __name__ == "__main__":
    main()
