"""`python -m benchmarks.gpu`: the whole generator on a GPU, through `LLM.generate`; prints the table and writes the results.

Needs a CUDA device with 80 GB and the packages of the generator. `--rows` is a pattern for the names of rows, as `64 adapters*`;
`--tiny` tries the program itself with a model that any machine can run, and writes nothing.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks.commit import current_commit
from benchmarks.gpu.check import num_wrong
from benchmarks.gpu.decode import GREEDY, NUM_STEPS, Workload, in_turn
from benchmarks.gpu.model import CONFIG, TINY
from benchmarks.gpu.results import Results, Steps
from benchmarks.gpu.rows import BANKS, PREFILL_LEN, Bank
from benchmarks.gpu.start import write_bank
from services.generator.llm import LLM
from shared.modeling.config import read_decoder_config
from shared.modeling.decoder_loader import make_random_decoder
from shared.modeling.device import choose_device
from shared.settings.model_folder import read_json

NUM_CHECKED, CHECKED_LEN = 16, 33
"""Rows of 64 decoded together whose tokens are checked, and how many of each."""


def main() -> None:
    """Run the rows that match."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Times the generator on a GPU.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--rows", default="*", help="pattern for the names of rows")
    parser.add_argument("--commit", default=current_commit(), help="what the rows say they measured")
    parser.add_argument("--tiny", action="store_true", help="a tiny model; the figures mean nothing and are not kept")
    options = parser.parse_args()
    results = Results(options.rows)
    for bank in BANKS:
        if any(map(results.wants, bank.names)):
            with tempfile.TemporaryDirectory(prefix="trivium-bench-") as folder:
                _run(results, bank, Path(folder), is_tiny=options.tiny)
    if not options.tiny:
        results.write(options.out, options.commit)


def _run(results: Results, bank: Bank, folder: Path, *, is_tiny: bool) -> None:
    config = TINY if is_tiny else CONFIG
    settings = write_bank(bank, folder, config)
    began = time.perf_counter()
    with LLM(**settings) as llm:
        if results.wants(bank.start):
            results.add(bank.start, time.perf_counter() - began)
        workload = Workload(llm, config["vocab_size"])
        _time(results, bank, llm, workload, num_steps=4 if is_tiny else NUM_STEPS)
        prompts, names = workload.prompts(64), in_turn(list(bank.ranks), 64)
        answers = llm.generate(prompts, {"max_tokens": CHECKED_LEN, **GREEDY}, lora=names)
    outputs = [answer.choices[0].token_ids for answer in answers]
    _check(folder / "model", prompts, outputs, [None if name is None else folder / name for name in names])


def _time(results: Results, bank: Bank, llm: LLM, workload: Workload, *, num_steps: int) -> None:
    def launches() -> Steps:
        return llm.stats.num_steps

    for row in bank.decodes:
        time_steps = partial(workload.step_ms, row.num_rows, row.adapters, num_steps=num_steps)
        results.measure(launches, row.name, time_steps, floor=row.floor, vllm=row.vllm, goal=row.goal)
    for prefill in bank.prefills:
        time_prefill = partial(workload.prefill_rate, prefill.num_prompts, PREFILL_LEN, prefill.adapters)
        compared = {"limit": prefill.limit, "vllm": prefill.vllm, "goal": prefill.goal}
        results.measure(launches, prefill.name, time_prefill, **compared)


def _check(model: Path, prompts: list[list[int]], outputs: list[list[int]], folders: list[Path | None]) -> None:
    """Stop where the answers of 64 rows decoded together are not those of a plain forward pass of each alone."""
    torch.cuda.empty_cache()
    config = read_decoder_config(read_json(model / "config.json"))
    weights = make_random_decoder(config, torch.bfloat16, choose_device("auto"))
    every = slice(None, None, len(prompts) // NUM_CHECKED)
    wrong = num_wrong(model, weights, prompts[every], outputs[every], folders[every], scale=2.0)
    total = sum(len(output) for output in outputs[every])
    print(f"checked: {total - wrong} of {total} greedy tokens are those of a plain forward pass", flush=True)
    if wrong > total // 100:
        raise SystemExit("the numbers are wrong; the times mean nothing")
    del weights
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
