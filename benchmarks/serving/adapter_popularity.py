"""One adapter has nine tenths of the traffic: how long the requests for the others wait for their first token.

Run as `python -m benchmarks.serving.adapter_popularity`: a tiny random model on the CPU, or with `--model 8b` the random model of
`benchmarks.gpu` on a GPU. There the rows of one adapter are cut into chunks, so that the popular one takes no longer than others;
each other `--chunk-sizes` puts one size in place of the table's choice: 1 is a program per row, as without segments. On a CPU
nothing is cut, and one engine is measured. The load is a share of what a closed loop reaches, from the same mix.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.gpu.model import CONFIG, TINY, write_adapters, write_model
from benchmarks.serving.adapter_load import Load, Measured, Sizes, joined
from services.generator.engine.handle import EngineHandle
from services.generator.engine.threads import EngineThreads
from services.generator.kernels import lora_segments
from services.generator.settings import GeneratorSettings
from shared.observability.logging import configure_logging

NUM_ADAPTERS = 16
RANK = 16
NUM_ROUNDS = 3
MODELS = {"tiny": TINY, "8b": CONFIG}
WHOLE_TABLE = "table"


def main() -> None:
    """Measure and print."""
    options = _parse()
    configure_logging("benchmark", "warning", "console")
    with tempfile.TemporaryDirectory(prefix="trivium-bench-") as folder:
        config = MODELS[options.model]
        model = write_model(Path(folder) / "model", config)
        names = [f"a{number}" for number in range(NUM_ADAPTERS)]
        lora = write_adapters(Path(folder), config, dict.fromkeys(names, RANK))
        settings = GeneratorSettings(
            model=str(model),
            load_format="dummy",
            max_model_len=1024,
            max_num_seqs=options.rows,
            gpu_memory_utilization=0.75,
            lora=lora,
            max_loras=NUM_ADAPTERS,
            max_lora_rank=RANK,
            num_threads=1,
            log_level="warning",
        )
        sizes = Sizes(options.prompt_tokens, options.output_tokens, num_clients=2 * options.rows)
        rate = None
        for chunk_size in options.chunk_sizes if torch.cuda.is_available() else [WHOLE_TABLE]:
            with _chunks_of(chunk_size), _engine(settings) as (handle, threads):
                rate = _measure(Load(handle, threads, sizes), names, options, chunk_size, rate)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.adapter_popularity", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--chunk-sizes", type=lambda text: text.split(","), default=[WHOLE_TABLE, "1", "64"])
    parser.add_argument("--share", type=float, default=0.9, help="of the popular adapter")
    parser.add_argument(
        "--load", type=float, default=0.5, help="share of what a closed loop reaches with the first of the sizes"
    )
    parser.add_argument("--requests", type=int, default=600, help="in each measurement")
    parser.add_argument("--rows", type=int, default=16, help="the most in a step")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    return parser.parse_args()


@contextmanager
def _chunks_of(size: str) -> Iterator[None]:
    """One chunk size for every step, or the table's choice."""
    table = lora_segments.CHUNK_SIZES
    if size != WHOLE_TABLE:
        lora_segments.CHUNK_SIZES = ((1 << 30, ((1 << 30, int(size)),)),)
    try:
        yield
    finally:
        lora_segments.CHUNK_SIZES = table


@contextmanager
def _engine(settings: GeneratorSettings) -> Iterator[tuple[EngineHandle, EngineThreads]]:
    handle = EngineHandle(settings.max_queued_requests)
    threads = EngineThreads(settings, handle)
    try:
        yield handle, threads
    finally:
        threads.stop()


def _measure(load: Load, names: list[str], options: argparse.Namespace, chunks: str, rate: float | None) -> float:
    """Print a line for each mix; answers the requests a second of the open loop, the same for all engines."""
    popular, *others = names
    skewed = [options.share] + [(1 - options.share) / len(others)] * len(others)
    even = [1.0] * len(names)
    load.closed(names, even, 4 * len(names))
    if rate is None:
        rate = options.load * load.closed(names, skewed, options.requests).rate / options.output_tokens
    rounds: dict[str, list[Measured]] = {"even": [], "skewed": []}
    for _ in range(NUM_ROUNDS):
        for mix, weights in (("even", even), ("skewed", skewed)):
            rounds[mix].append(load.open(names, weights, options.requests // NUM_ROUNDS, rate=rate))
    for mix, among in (("even", names), ("skewed", [popular]), ("skewed", others)):
        measured = joined(rounds[mix])
        who = {1: "the popular one", len(names): "all"}.get(len(among), "the others")
        median_ms, p99_ms = (measured.percentile(share, among) * 1000 for share in (0.5, 0.99))
        sys.stdout.write(
            f"chunks {chunks:5}  {mix:6} {who:15}  {rate:6.1f} requests/s   first token {median_ms:7.1f} ms median, "
            f"{p99_ms:7.1f} ms p99\n"
        )
    return rate


if __name__ == "__main__":
    main()
