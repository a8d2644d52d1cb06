"""`python -m benchmarks.gpu.profile --rows "64 adapters, B=64"`: where the time of the table's rows goes, by families of kernels.

Of a decode row: part of a long answer of all rows at once, of which whole steps are counted. Of a row of prompts: one `generate`
from its call to its answer, beside the same without a trace, which is what the table times. The rank-r side of few tokens is a part
of the products. `--tiny` tries the program with a tiny model; on a CPU it says that there was nothing to trace.
"""

import argparse
import fnmatch
import statistics
import threading
import time
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu.decode import GREEDY, Workload, in_turn
from benchmarks.gpu.model import CONFIG, TINY
from benchmarks.gpu.rows import BANKS, PREFILL_LEN, Bank, DecodeRow, PrefillRow
from benchmarks.gpu.spans import Span, call_table, step_table
from benchmarks.gpu.start import scratch_folder, write_bank
from benchmarks.gpu.timing import time_runs
from services.generator.llm import LLM

ANSWER_LEN, BEFORE_S, TRACED_S = 400, 0.6, 0.3
CALL = "generate"
ACTIVITIES = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
"""The host's side holds the thread that profiles alone, and so nothing of the engine's."""


def main() -> None:
    """Profile the rows that match."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.profile", description=__doc__)
    parser.add_argument("--rows", default="*, B=64", help="pattern for the names of rows")
    parser.add_argument("--tiny", action="store_true", help="a tiny model; the figures mean nothing")
    options = parser.parse_args()
    wanted = [bank for bank in BANKS if any(fnmatch.filter(bank.names[1:], options.rows))]
    if not wanted:
        parser.error(f"--rows {options.rows}: no row has such a name")
    for bank in wanted:
        _profile(bank, options.rows, TINY if options.tiny else CONFIG)


def _profile(bank: Bank, pattern: str, config: dict[str, Any]) -> None:
    with scratch_folder() as folder, LLM(**write_bank(bank, folder, config)) as llm:
        workload = Workload(llm, config["vocab_size"])
        with profile(activities=ACTIVITIES):
            workload.prefill_rates(1, 16, [], num_runs=1)  # the first profile takes long to begin
        for decode in bank.decodes:
            if fnmatch.fnmatch(decode.name, pattern):
                print(f"\n{decode.name}", *step_table(_trace_steps(llm, workload, decode)), sep="\n", flush=True)
        for prefill in bank.prefills:
            if fnmatch.fnmatch(prefill.name, pattern):
                print(f"\n{prefill.name}", *_prompt_lines(llm, workload, prefill), sep="\n", flush=True)


def _trace_steps(llm: LLM, workload: Workload, row: DecodeRow) -> list[Span]:
    """What runs on the device while all rows decode."""
    names = in_turn(row.adapters, row.num_rows)

    def decode(num_tokens: int) -> None:
        llm.generate(workload.prompts(row.num_rows), {"max_tokens": num_tokens, **GREEDY, **row.sampling}, lora=names)

    decode(4)  # adapters come to their slots
    decoding = threading.Thread(target=decode, args=(ANSWER_LEN,))
    decoding.start()
    time.sleep(BEFORE_S)  # prompts
    with profile(activities=ACTIVITIES) as profiler:
        time.sleep(TRACED_S)
    decoding.join()
    return _spans(profiler, DeviceType.CUDA)


def _prompt_lines(llm: LLM, workload: Workload, row: PrefillRow) -> list[str]:
    names = in_turn(row.adapters, row.num_prompts)
    calls = iter([workload.prompts(row.num_prompts, PREFILL_LEN) for _ in range(5)])

    def generate() -> None:
        llm.generate(next(calls), {"max_tokens": 1, **GREEDY}, lora=names)

    untraced_ms = 1000 * statistics.median(time_runs(generate, 3))
    with profile(activities=ACTIVITIES) as profiler, record_function(CALL):
        generate()
    (call,) = (span for span in _spans(profiler, DeviceType.CPU) if span.name == CALL)
    on_device = [span for span in _spans(profiler, DeviceType.CUDA) if span.name != CALL]
    return [*call_table(call, on_device), f"{'  not traced':42} {untraced_ms:7.3f} ms, median of 3"]


def _spans(profiler: profile, device: DeviceType) -> list[Span]:
    events = [event for event in profiler.events() if event.device_type == device]
    return [Span(event.name, event.time_range.start, event.time_range.end) for event in events]


if __name__ == "__main__":
    main()
