"""`python -m benchmarks.gpu.peers`: `transformers` and `peft` on the workload of the GPU table, beside our last figures.

The same shape with random weights in bf16; greedy, prompts of 128 random ids; `peft` runs a mixed batch, each row with an
adapter of its own. Neither captures graphs nor pages its cache: what a script costs that does without an engine. Needs both
packages, and keeps its rows as the table does. `--tiny` tries the program without a GPU.
"""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu.decode import PROMPT_LEN, random_prompts, step_ms
from benchmarks.gpu.model import CONFIG, TINY, projections
from benchmarks.gpu.results import LATEST, Results, parser_of
from shared.modeling.device import choose_device

NUM_STEPS = 32
BASE_ROWS = (1, 64)
MIXED_ROWS = 8
RANK = 16


def main() -> None:
    """Time both."""
    parser = parser_of("gpu.peers", "Times transformers and peft on the workload of the GPU table.")
    parser.add_argument("--ours", type=Path, default=Path("benchmarks/results") / LATEST, help="our last medians")
    options = parser.parse_args()
    results = Results(options, "peers-gpu.jsonl")
    ours = json.loads(options.ours.read_text(encoding="utf-8")) if options.ours.exists() else {}
    config, num_steps = (TINY, 4) if options.tiny else (CONFIG, NUM_STEPS)

    def measure(peer: str, row: str, seconds: _Seconds) -> None:
        results.measure(f"{peer}, {row}", partial(step_ms, seconds, num_steps=num_steps), ours=ours.get(row))

    model = _model(config)
    for num_rows in BASE_ROWS:
        measure("transformers", f"base, B={num_rows}", _Seconds(model, config, num_rows))
    names = [f"a{index}" for index in range(MIXED_ROWS)]
    mixed = _Seconds(_with_adapters(model, config, names), config, MIXED_ROWS, adapter_names=names)
    measure("peft", f"{MIXED_ROWS} adapters, B={MIXED_ROWS}", mixed)
    results.check_any()


class _Seconds:
    """How long `generate` takes for so many tokens."""

    def __init__(self, model: Any, config: dict[str, Any], num_rows: int, **arguments: Any) -> None:
        self._model = model
        self._vocab_size = config["vocab_size"]
        self._num_rows = num_rows
        self._arguments = arguments

    @torch.inference_mode()
    def __call__(self, num_tokens: int) -> float:
        prompts = random_prompts(self._num_rows, PROMPT_LEN, self._vocab_size)
        ids = torch.tensor(prompts, device=self._model.device)
        lengths = {"min_new_tokens": num_tokens, "max_new_tokens": num_tokens}
        began = time.perf_counter()
        output = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            **lengths,
            **self._arguments,
        )
        tokens = output[:, PROMPT_LEN:].tolist()  # waits for the device
        seconds = time.perf_counter() - began
        if {len(row) for row in tokens} != {num_tokens}:
            raise RuntimeError(f"an answer does not have {num_tokens} tokens")
        return seconds


def _model(config: dict[str, Any]) -> Any:
    own = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "dtype")}
    with choose_device("auto"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **own), dtype=torch.bfloat16)
    return model.eval()


def _with_adapters(model: Any, config: dict[str, Any], names: list[str]) -> Any:
    modules = [name.rpartition(".")[2] for name in projections(config)]
    lora = LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules=modules, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    adapted = get_peft_model(model, lora, adapter_name=names[0])
    for name in names[1:]:
        adapted.add_adapter(name, lora)
    return adapted.to(torch.bfloat16).eval()


if __name__ == "__main__":
    main()
