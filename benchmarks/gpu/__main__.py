"""`python -m benchmarks.gpu`: the whole generator on a GPU, through `LLM.generate`; prints and writes its table row by row.

Needs a CUDA device with 80 GB and the packages of the generator. `--rows` is a pattern for the names of rows, as `64 adapters*`;
`--tiny` tries the program itself with a model that any machine can run, and writes nothing.
"""

import contextlib
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.check import PlainModel
from benchmarks.gpu.decode import GREEDY, NUM_STEPS, Prompts, Workload, in_turn
from benchmarks.gpu.model import CONFIG, TINY
from benchmarks.gpu.results import Results, Steps, parser_of
from benchmarks.gpu.rows import BANKS, PREFILL_LEN, Bank
from benchmarks.gpu.start import scratch_folder, write_bank
from benchmarks.gpu.timing import Parts
from services.generator.llm import LLM

NUM_CHECKED, DECODED_LEN, PREFILLED_LEN = 8, 33, 3
"""Sequences of each row whose tokens are checked, and how many of each: of a decode row, of a row of prompts."""


def main() -> None:
    """Run the rows that match."""
    options = parser_of("gpu", "Times the generator on a GPU.").parse_args()
    results, parts = Results(options, "generator-gpu.jsonl"), Parts()
    for bank in BANKS:
        if any(map(results.wants, bank.names)):
            with scratch_folder() as folder:
                _run(results, parts, bank, folder, is_tiny=options.tiny)
    results.check_any()
    print(f"where the time went: {parts}", flush=True)


def _run(results: Results, parts: Parts, bank: Bank, folder: Path, *, is_tiny: bool) -> None:
    """Nothing is kept of an engine before its numbers are known to be right."""
    config = TINY if is_tiny else CONFIG
    with parts.part("model and adapters written"):
        settings = write_bank(bank, folder, config)
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        with parts.part("starts"):
            llm = stack.enter_context(LLM(**settings))
        start_s = time.perf_counter() - began
        workload = Workload(llm, config["vocab_size"])
        with parts.part("checks"):
            _check(results, bank, llm, workload, folder)
        results.add(bank.start, [start_s])
        with parts.part("rows"):
            _time(results, bank, llm, workload, num_steps=4 if is_tiny else NUM_STEPS)


def _time(results: Results, bank: Bank, llm: LLM, workload: Workload, *, num_steps: int) -> None:
    def launches() -> Steps:
        return llm.stats.num_steps

    for row in bank.decodes:
        time_steps = partial(workload.step_ms, row.num_rows, row.adapters, row.sampling, num_steps=num_steps)
        results.measure(row.name, time_steps, launches, floor=row.floor, vllm=row.vllm, goal=row.goal)
    for prefill in bank.prefills:
        time_prefill = partial(workload.prefill_rates, prefill.num_prompts, PREFILL_LEN, prefill.adapters)
        compared = {"limit": prefill.limit, "vllm": prefill.vllm, "goal": prefill.goal}
        results.measure(prefill.name, time_prefill, launches, **compared)


def _check(results: Results, bank: Bank, llm: LLM, workload: Workload, folder: Path) -> None:
    """Stop where greedy answers are not those of a plain forward pass of each sequence alone, in each mix of the rows that are
    wanted. What is drawn is not checked: rows that draw have the mix of greedy ones."""
    plain = PlainModel(folder, scale=2.0)
    decodes = [row for row in reversed(bank.decodes) if results.wants(row.name)]
    for row in {(row.num_rows, *row.adapters): row for row in decodes}.values():
        _check_row(row.name, llm, plain, workload.prompts(row.num_rows), row.adapters, DECODED_LEN)
    for row in filter(lambda row: results.wants(row.name), bank.prefills):
        prompts = workload.prompts(row.num_prompts, PREFILL_LEN)
        _check_row(row.name, llm, plain, prompts, row.adapters, PREFILLED_LEN)
    del plain
    torch.cuda.empty_cache()


def _check_row(
    name: str, llm: LLM, plain: PlainModel, prompts: Prompts, adapters: Sequence[str], num_tokens: int
) -> None:
    names = in_turn(adapters, len(prompts))
    answers = llm.generate(prompts, {"max_tokens": num_tokens, **GREEDY}, lora=names)
    outputs = [answer.choices[0].token_ids for answer in answers]
    some = random.sample(range(len(prompts)), min(NUM_CHECKED, len(prompts)))
    wrong = sum(plain.num_wrong(prompts[index], outputs[index], names[index]) for index in some)
    total = num_tokens * len(some)
    print(f"{name:52} {total - wrong} of {total} greedy tokens are those of a plain forward pass", flush=True)
    if wrong > total // 100:
        raise SystemExit("the numbers are wrong; the times mean nothing")


if __name__ == "__main__":
    main()
