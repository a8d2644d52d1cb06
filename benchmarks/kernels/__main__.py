"""`python -m benchmarks.kernels`: times the Triton kernels on a GPU and appends a JSON row for each point.

Needs a CUDA device, torch and triton only. `--rows` is a pattern for the names of benches, as `lora_s*`, or the name of a sweep.
"""

import argparse
import fnmatch
import json
from pathlib import Path
from types import ModuleType

from benchmarks.commit import current_commit
from benchmarks.kernels import (
    add_layer_norm,
    argmax,
    lora_crossover,
    lora_expand,
    lora_layers,
    lora_shrink,
    lora_silu_mul,
    lora_silu_mul_blocks,
    lora_step,
    paged_attention_decode,
    paged_attention_prefill,
    rms_norm,
    rope_kv_write,
    sample,
    silu_mul,
    skinny_linear,
    step_indices,
)
from benchmarks.kernels.measure import measure

BENCHES = {
    "lora_layers": lora_layers,
    "lora_step": lora_step,
    "lora_shrink": lora_shrink,
    "lora_expand": lora_expand,
    "lora_silu_mul": lora_silu_mul,
    "paged_attention_decode": paged_attention_decode,
    "paged_attention_prefill": paged_attention_prefill,
    "rope_kv_write": rope_kv_write,
    "rms_norm": rms_norm,
    "silu_mul": silu_mul,
    "skinny_linear": skinny_linear,
    "add_layer_norm": add_layer_norm,
    "argmax": argmax,
    "sample": sample,
    "step_indices": step_indices,
}
SWEEPS = {"lora_crossover": lora_crossover, "lora_silu_mul_blocks": lora_silu_mul_blocks}
"""Long ones, which run only where their name is given."""


def _wanted(pattern: str) -> dict[str, ModuleType]:
    sweep = SWEEPS.get(pattern)
    return {pattern: sweep} if sweep else {name: BENCHES[name] for name in fnmatch.filter(BENCHES, pattern)}


def main() -> None:
    """Run the benches that match."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description="Times the Triton kernels.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the rows")
    parser.add_argument("--rows", default="*", help="pattern for the names of benches")
    parser.add_argument("--commit", default=current_commit(), help="what the rows say they measured")
    options = parser.parse_args()
    wanted = _wanted(options.rows)
    if not wanted:
        parser.error(f"--rows {options.rows}: there are {', '.join([*BENCHES, *SWEEPS])}")
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "kernels.jsonl").open("a", encoding="utf-8") as file:
        for name, bench in wanted.items():
            for point in bench.points():
                row = measure(point, options.commit)
                print(json.dumps(row), file=file, flush=True)
                limit = f"{row['tflop_s']} TFLOP/s" if "tflop_s" in row else f"{row['gb_s']} GB/s"
                print(
                    f"{name} {point.parameters}: {row['median_us']} us, {limit}, {row['share_of_peak']:.0%}", flush=True
                )


if __name__ == "__main__":
    main()
