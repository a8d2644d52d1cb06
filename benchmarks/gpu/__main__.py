"""`python -m benchmarks.gpu`: the whole generator on a GPU, through `LLM.generate`; prints the table and writes the results.

Needs a CUDA device with 80 GB and the packages of the generator. `--rows` is a pattern for the names of rows, as `64 adapters*`.
"""

import argparse
import fnmatch
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton

from benchmarks.gpu.check import num_wrong
from benchmarks.gpu.decode import GREEDY, prefill_rate, random_prompts, spread, step_ms
from benchmarks.gpu.model import write_adapter, write_model
from benchmarks.gpu.rows import ADAPTER_PREFILL_ROWS, ADAPTER_ROWS, BASE_ROWS, PREFILL_LEN, PREFILL_ROWS, PrefillRow
from benchmarks.kernels.__main__ import current_commit
from services.generator.llm import LLM
from shared.modeling.config import read_decoder_config
from shared.modeling.decoder_loader import make_random_decoder
from shared.settings.model_folder import read_json

RANK, NUM_ADAPTERS = 16, 64
IDLE_ROW = "bank installed, no row uses it, B=64"
SETTINGS = {"load_format": "dummy", "max_num_seqs": 256, "max_model_len": 4096, "gpu_memory_utilization": 0.75}


class Results:
    """Medians by the names of their rows; printed as they come."""

    def __init__(self, pattern: str) -> None:
        self.medians: dict[str, float] = {}
        self._pattern = pattern

    def wants(self, name: str) -> bool:
        """Whether the row is asked for."""
        return fnmatch.fnmatch(name, self._pattern)

    def add(self, name: str, value: float, **compared: float | None) -> None:
        """Keep and print a row."""
        self.medians[name] = round(value, 3)
        others = "  ".join(f"{key} {number}" for key, number in compared.items() if number is not None)
        print(f"{name:40} {value:9.3f}   {others}", flush=True)


def main() -> None:
    """Run the rows that match."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Times the generator on a GPU.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--rows", default="*", help="pattern for the names of rows")
    parser.add_argument("--commit", default=current_commit(), help="what the rows say they measured")
    options = parser.parse_args()
    results = Results(options.rows)
    with tempfile.TemporaryDirectory(prefix="trivium-bench-") as folder:
        model = write_model(Path(folder) / "model")
        adapters = {f"a{i}": write_adapter(Path(folder) / f"a{i}", RANK, i) for i in range(NUM_ADAPTERS)}
        _run(results, model, {}, "start to ready, s")
        _run(results, model, adapters, f"start to ready with {NUM_ADAPTERS} adapters, s")
    _write(options.out, options.commit, results)


def _run(results: Results, model: Path, adapters: dict[str, Path], start_row: str) -> None:
    bank = {"lora": [f"{name}={folder}" for name, folder in adapters.items()], "max_lora_rank": RANK}
    began = time.perf_counter()
    with LLM(str(model), **SETTINGS, **(bank if adapters else {}), max_loras=NUM_ADAPTERS) as llm:
        results.add(start_row, time.perf_counter() - began)
        names = list(adapters)
        if adapters and results.wants(IDLE_ROW):
            results.add(IDLE_ROW, step_ms(llm, 64, []), floor=4.59, vllm=5.92)
        for row in ADAPTER_ROWS if adapters else BASE_ROWS:
            if results.wants(row.name):
                value = step_ms(llm, row.num_rows, names[: row.num_adapters])
                results.add(row.name, value, floor=row.floor, vllm=row.vllm, goal=row.goal)
        _prefill(results, llm, names, ADAPTER_PREFILL_ROWS if adapters else PREFILL_ROWS)
        prompts, lora = random_prompts(64), spread(names, 64)
        answers = llm.generate(prompts, {"max_tokens": 33, **GREEDY}, lora=lora)
    outputs = [answer.choices[0].token_ids for answer in answers]
    folders = [None if lora is None else adapters[lora[index]] for index in range(64)]
    _check(model, prompts, outputs, folders)


def _prefill(results: Results, llm: LLM, names: list[str], rows: Iterable[PrefillRow]) -> None:
    for row in rows:
        if results.wants(row.name):
            value = prefill_rate(llm, row.num_prompts, PREFILL_LEN, names[: row.num_adapters])
            results.add(f"{row.name}, k tok/s", value, limit=row.limit, vllm=row.vllm, goal=row.goal)


def _check(model: Path, prompts: list[list[int]], outputs: list[list[int]], folders: list[Path | None]) -> None:
    """Stop where the answers of 64 rows decoded together are not those of a plain forward pass of each alone."""
    torch.cuda.empty_cache()
    config = read_decoder_config(read_json(model / "config.json"))
    weights = make_random_decoder(config, torch.bfloat16, torch.device("cuda"))
    every = slice(None, None, 4)
    wrong = num_wrong(model, weights, prompts[every], outputs[every], folders[every], scale=2.0)
    total = sum(len(output) for output in outputs[every])
    print(f"checked: {total - wrong} of {total} greedy tokens are those of a plain forward pass", flush=True)
    if wrong > total // 100:
        raise SystemExit("the numbers are wrong; the times mean nothing")
    del weights
    torch.cuda.empty_cache()


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]


def _write(folder: Path, commit: str, results: Results) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "h200-latest.json").write_text(json.dumps(results.medians, indent=1) + "\n", encoding="utf-8")
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "driver": _driver(),
    }
    with (folder / "generator-gpu.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"row": name, "median": value, **about}) + "\n" for name, value in results.medians.items()
        )


if __name__ == "__main__":
    main()
