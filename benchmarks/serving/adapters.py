"""Eight rows with eight adapters against eight rows of the base model, in one engine on the CPU.

Run as `python -m benchmarks.serving.adapters`; prints a table whose last column is the ratio to the base model. The mixes take
turns, so that only the ratio counts. Goal: eight adapters at least 0.6 times as fast as the base model. With `--ranks` there are
four adapters at a time in a bank of rank 64 instead, of one rank or one of each: the time has to follow the ranks that are used.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from services.generator import LLM
from services.generator.adapters.modules import group_shapes
from shared.modeling.config import read_decoder_config

MODEL = Path("models/smollm2-135m-instruct")
NUM_ROWS = 8
NUM_TOKENS = 16
NUM_ROUNDS = 2
RANK = 8
RANKS = (8, 16, 32, 64)
NUM_OF_EACH = 4

Mixes = dict[str, list[str | None]]
"""Name of a mix: the adapter of each row."""

PROMPT = "Write a very long and detailed story about number {}."


def write_adapter(folder: Path, seed: int, model: Path = MODEL, rank: int = RANK) -> None:
    """An adapter of `model` with random weights on every projection, in the layout of PEFT."""
    config = read_decoder_config(json.loads((model / "config.json").read_text(encoding="utf-8")))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(config.num_layers):
        for shape in group_shapes(config).values():
            for module, size in zip(shape.modules, shape.slice_sizes, strict=True):
                name = f"base_model.model.model.layers.{layer}.{module}"
                tensors[f"{name}.lora_A.weight"] = 0.01 * torch.randn(rank, shape.in_features, generator=generator)
                tensors[f"{name}.lora_B.weight"] = 0.01 * torch.randn(size, rank, generator=generator)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    keys = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(keys), encoding="utf-8")


def rate(llm: LLM, names: list[str | None]) -> float:
    """Tokens per second with these adapters, one a row."""
    prompts = [PROMPT.format(number) for number in range(NUM_ROWS)]
    start = time.perf_counter()
    llm.generate(prompts, {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}, lora=names)
    return NUM_ROWS * NUM_TOKENS / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.adapters", description=__doc__)
    parser.add_argument("--ranks", action="store_true", help="several ranks in one bank")
    has_ranks = parser.parse_args().ranks
    mixes = _mixes_of_ranks() if has_ranks else _mixes()
    ranks = {name: int(name.split("-")[0]) for names in mixes.values() for name in names if name is not None}
    with tempfile.TemporaryDirectory() as root:
        for number, (name, rank) in enumerate(ranks.items()):
            write_adapter(Path(root) / name, number, rank=rank)
        lora = [f"{name}={root}/{name}" for name in ranks]
        bank = {"lora": lora, "max_loras": NUM_ROWS, "max_lora_rank": max(ranks.values())}
        with LLM(str(MODEL), max_model_len=512, **bank) as llm:
            for names in mixes.values():
                rate(llm, names)
            rounds = [{mix: rate(llm, names) for mix, names in mixes.items()} for _ in range(NUM_ROUNDS)]
    for mix in mixes:
        ratio = statistics.median(measured[mix] / measured["base model"] for measured in rounds)
        speed = statistics.median(measured[mix] for measured in rounds)
        sys.stdout.write(f"{mix:<20} {speed:7.1f} tok/s   {ratio:5.2f} of the base model\n")


def _mixes() -> Mixes:
    names = [f"{RANK}-{number}" for number in range(NUM_ROWS)]
    return {"base model": [None] * NUM_ROWS, "1 adapter": [names[0]] * NUM_ROWS, f"{NUM_ROWS} adapters": [*names]}


def _mixes_of_ranks() -> Mixes:
    def rows(names: list[str]) -> list[str | None]:
        return [names[index % len(names)] for index in range(NUM_ROWS)]

    alone = {f"rank {rank}": rows([f"{rank}-{number}" for number in range(NUM_OF_EACH)]) for rank in RANKS}
    return {"base model": [None] * NUM_ROWS, **alone, "one of each rank": rows([f"{rank}-0" for rank in RANKS])}


if __name__ == "__main__":
    main()
