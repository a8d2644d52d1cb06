"""Many adapters on few slots: 2,000 of them by a Zipf law, and a working set of twice the slots, against a set that fits.

Run as `python -m benchmarks.serving.adapter_tiers`; a tiny random model on the CPU, so that what adapters cost beside the model
shows as large as it can be. Goals: with 2,000 adapters at least 0.9 times the throughput of 16; with twice the slots in use, at
half of the load that the resident set takes, at most 5 times its 99th percentile of the time to the first token.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.serving.adapter_load import Load, Measured, Sizes, joined
from benchmarks.serving.adapters import write_adapter
from services.generator.engine.handle import EngineHandle
from services.generator.engine.threads import EngineThreads
from services.generator.settings import GeneratorSettings
from shared.observability.logging import configure_logging
from tests.generator.conftest import save_tiny_llama

NUM_SLOTS = 16
NUM_ROWS = 16
SIZES = Sizes()
NUM_ROUNDS = 4
TURN_S = 0.2
"""Slot quantum: an adapter that others wait for keeps its slot this long."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.adapter_tiers", description=__doc__)
    parser.add_argument("--adapters", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=1500, help="in each measurement")
    options = parser.parse_args()
    configure_logging("benchmark", "warning", "console")
    with tempfile.TemporaryDirectory() as folder:
        base, root = save_tiny_llama(Path(folder) / "base", eos_token_id=None), Path(folder) / "root"
        root.mkdir()
        names = [f"a{number}" for number in range(options.adapters)]
        for number, name in enumerate(names):
            write_adapter(root / name, number, base)
        settings = GeneratorSettings(
            model=str(base),
            num_threads=1,
            lora_root=[str(root)],
            max_num_seqs=NUM_ROWS,
            max_loras=NUM_SLOTS,
            max_lora_rank=8,
            lora_max_wait=TURN_S,
            log_level="warning",
        )
        handle = EngineHandle(settings.max_queued_requests)
        start = time.perf_counter()
        threads = EngineThreads(settings, handle)
        sys.stdout.write(f"{len(names)} adapters listed, engine ready after {time.perf_counter() - start:.1f} s\n")
        try:
            measure(Load(handle, threads, SIZES), names, options.requests)
            sys.stdout.write(f"{handle.adapter_view.counts}\n")
        finally:
            threads.stop()


def measure(load: Load, names: list[str], num_requests: int) -> None:
    """The four measurements, which take turns, so that a busy machine slows all of them; a set is used before it counts."""
    few, twice = names[:NUM_SLOTS], names[: 2 * NUM_SLOTS]
    zipf = [1 / rank for rank in range(1, len(names) + 1)]
    share = num_requests // NUM_ROUNDS
    load.closed(few, zipf[:NUM_SLOTS], NUM_SLOTS * 4)
    resident, many, fits, over = [], [], [], []
    for _ in range(NUM_ROUNDS):
        resident.append(load.closed(few, zipf[:NUM_SLOTS], share))
        many.append(load.closed(names, zipf, share))
        rate = min(one.rate for one in resident) / SIZES.output / 2
        load.closed(twice, [1.0] * len(twice), len(twice))
        over.append(load.open(twice, [1.0] * len(twice), share, rate=rate))
        load.closed(few, [1.0] * NUM_SLOTS, NUM_SLOTS)
        fits.append(load.open(few, [1.0] * NUM_SLOTS, share, rate=rate))
    say(f"{NUM_SLOTS} adapters, Zipf", resident)
    say(f"{len(names)} adapters, Zipf", many)
    ratio = statistics.median(one.rate / other.rate for one, other in zip(many, resident, strict=True))
    sys.stdout.write(f"throughput {ratio:.2f} of that of {NUM_SLOTS} adapters\n")
    say(f"{NUM_SLOTS} in use, open loop", fits)
    say(f"{2 * NUM_SLOTS} in use, the same load", over)
    ratio = joined(over).percentile(0.99) / joined(fits).percentile(0.99)
    sys.stdout.write(f"p99 of the first token {ratio:.1f} times; slot quantum {TURN_S} s\n")


def say(what: str, rounds: list[Measured]) -> None:
    """One line."""
    measured = joined(rounds)
    median_ms, p99_ms = (measured.percentile(share) * 1000 for share in (0.5, 0.99))
    sys.stdout.write(
        f"{what:<45} {measured.rate:8.0f} tok/s   first token {median_ms:6.1f} ms median, {p99_ms:6.1f} ms p99\n"
    )


if __name__ == "__main__":
    main()
