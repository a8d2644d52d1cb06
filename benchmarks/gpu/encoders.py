"""`python -m benchmarks.gpu.encoders`: embedder and reranker on a GPU beside `transformers` and `CrossEncoder`, in one run.

Token ids in to float vectors on the host, and the same over HTTP; then one query with 1,000 documents. Appends its rows to
`encoders-gpu.jsonl`. `--try-out` runs all of it in a tiny shape, on a CPU too; `--profile` prints the time of each kernel of ours.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
import transformers

from benchmarks.commit import current_commit
from benchmarks.gpu.encoder_http import embed_over_http, rerank_over_http
from benchmarks.gpu.encoder_model import (
    BASE,
    LARGE,
    NUM_SEQUENCES,
    Shape,
    random_documents,
    random_sequences,
    write_cross_encoder,
    write_encoder,
)
from benchmarks.gpu.encoder_peer import check, embed, load_peer
from benchmarks.serving.services import running, service
from services.embedder.settings import EmbedderSettings
from shared.batching.micro_batcher import BatcherSpec, MicroBatcher
from shared.modeling.text_encoder import TextEncoder, load_text_encoder

TINY = Shape("tiny", 128, 2, 0, 0)
NUM_CHECKED, QUERY_LEN = 128, 16
QUEUE = ("--max-queue-tokens", str(2**21))


class Rows:
    """Results by name; printed as they come."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, name: str, value: float, **compared: float | str) -> None:
        """Keep and print one."""
        self.values[name] = round(value, 4)
        print(f"{name:52} {value:10.3f}   " + "  ".join(f"{k} {v}" for k, v in compared.items()), flush=True)

    def write(self, folder: Path, commit: str) -> None:
        """Append them all, with what they were measured on."""
        folder.mkdir(parents=True, exist_ok=True)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        about = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit, "device": device}
        with (folder / "encoders-gpu.jsonl").open("a", encoding="utf-8") as file:
            for name, value in self.values.items():
                file.write(json.dumps({"row": name, "value": value, **about, "torch": torch.__version__}) + "\n")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.encoders", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--commit", default=current_commit(), help="what the rows say they measured")
    parser.add_argument("--profile", action="store_true", help="print the kernels of one pass of ours")
    parser.add_argument("--try-out", action="store_true", help="a tiny shape and few sequences; writes nothing")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = Rows()
    with tempfile.TemporaryDirectory(prefix="trivium-bench-") as name:
        for shape in (TINY,) if options.try_out else (BASE, LARGE):
            folder = write_encoder(Path(name) / shape.name, shape)
            sequences = random_sequences(64 if options.try_out else NUM_SEQUENCES)
            time_encoder(rows, shape, folder, sequences, has_profile=options.profile)
        shape = TINY if options.try_out else BASE
        folder = write_cross_encoder(Path(name) / "cross-encoder", shape)
        time_reranker(rows, shape, folder, random_documents(20 if options.try_out else 1000))
    if not options.try_out:
        rows.write(options.out, options.commit)


def time_encoder(rows: Rows, shape: Shape, folder: Path, sequences: Sequence[list[int]], *, has_profile: bool) -> None:
    """The rows of one shape: in this process, then over HTTP, when the memory of what ran here is free again."""
    time_in_process(rows, shape, folder, sequences, has_profile=has_profile)
    torch.cuda.empty_cache()
    flags = ("--model", str(folder), "--dtype", "bfloat16", "--pooling", "mean", "--no-normalize", *QUEUE)
    with running(embedder := service("embedder", *flags)):
        seconds = median_s(lambda: embed_over_http(embedder.url, sequences), 3)
    rows.add(f"{shape.name}, ours over HTTP, k tok/s", sum(map(len, sequences)) / 1000 / seconds)


def time_in_process(
    rows: Rows, shape: Shape, folder: Path, sequences: Sequence[list[int]], *, has_profile: bool
) -> None:
    """The peer twice, ours, and both with one short query."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    num_k_tokens = sum(map(len, sequences)) / 1000
    peer = load_peer(folder, device, torch.bfloat16)
    settings = EmbedderSettings(model=str(folder), dtype="bfloat16", pooling="mean", normalize=False)
    encoder = load_text_encoder(settings)
    few = sequences[:NUM_CHECKED]
    exact = embed(load_peer(folder, device, torch.float32), few, 16, is_sorted=True)
    ours = asyncio.run(through_batcher(encoder, settings, few, num_runs=1))[0]
    print(f"{shape.name}: {check(ours, embed(peer, few, 1, is_sorted=False), exact)}", flush=True)
    for name, size, is_sorted in (("batches of 32 as they come", 32, False), ("sorted, batches of 128", 128, True)):
        seconds = median_s(lambda size=size, by=is_sorted: embed(peer, sequences, size, is_sorted=by), 2)
        rows.add(f"{shape.name}, transformers, {name}, k tok/s", num_k_tokens / seconds)
    seconds = statistics.median(asyncio.run(through_batcher(encoder, settings, sequences, num_runs=5))[1])
    rows.add(f"{shape.name}, ours, k tok/s", num_k_tokens / seconds, limit=shape.limit, goal=shape.goal)
    if has_profile:
        print_profile(encoder, settings, sequences)
    query = [sequences[0][:QUERY_LEN]]
    theirs = median_s(lambda: embed(peer, query, 1, is_sorted=False), 50) * 1000
    ours_ms = median_s(lambda: encoder.launch(query).wait(), 50) * 1000
    rows.add(f"{shape.name}, one query of {QUERY_LEN} tokens, transformers, ms", theirs)
    rows.add(f"{shape.name}, one query of {QUERY_LEN} tokens, ours, ms", ours_ms)


async def through_batcher(
    encoder: TextEncoder, settings: EmbedderSettings, sequences: Sequence[list[int]], num_runs: int
) -> tuple[np.ndarray, list[float]]:
    """Vectors of all sequences, given to the batcher as one request, and the seconds of each run after a first one."""
    spec = BatcherSpec(
        settings.max_num_seqs, settings.max_padding_share, settings.max_queue_tokens, settings.hold_ms / 1000
    )
    batcher: MicroBatcher[TextEncoder] = MicroBatcher(
        "bench", lambda: encoder, spec, on_batch=lambda _: None, on_dead=print
    )
    batcher.start()
    while batcher.state == "loading":  # noqa: ASYNC110 - what is waited for is set on the model thread
        await asyncio.sleep(0.01)
    seconds = []
    for _ in range(num_runs + 1):
        began = time.perf_counter()
        vectors = await batcher.encode(sequences)
        seconds.append(time.perf_counter() - began)
    await batcher.stop()
    return vectors, seconds[1:]


def print_profile(encoder: TextEncoder, settings: EmbedderSettings, sequences: Sequence[list[int]]) -> None:
    """Device time by kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        asyncio.run(through_batcher(encoder, settings, sequences, num_runs=0))
    print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=16, max_name_column_width=70))


def time_reranker(rows: Rows, shape: Shape, folder: Path, documents: Sequence[str]) -> None:
    """One query with many documents: the peer's `predict`, ours over HTTP."""
    query = "w7 w8 w9 w10 w11 w12"
    theirs = predict_s(folder, [(query, document) for document in documents])
    with running(reranker := service("reranker", "--model", str(folder), "--dtype", "bfloat16", *QUEUE)):
        ours = median_s(lambda: rerank_over_http(reranker.url, query, documents), 7)
    name = f"{shape.name} cross-encoder, 1 x {len(documents)} documents, p50 s"
    rows.add(f"{name}, CrossEncoder.predict", theirs)
    rows.add(f"{name}, ours over HTTP", ours, faster=f"{theirs / ours:.2f}x", goal="1.5x")


def predict_s(folder: Path, pairs: list[tuple[str, str]]) -> float:
    """Seconds of the peer's `predict`, which sorts by length and takes batches of 32."""
    from sentence_transformers import CrossEncoder

    device = "cuda" if torch.cuda.is_available() else "cpu"
    peer = CrossEncoder(str(folder), device=device, model_kwargs={"dtype": torch.bfloat16})
    return median_s(lambda: peer.predict(pairs, show_progress_bar=False), 5)


def median_s(work: Callable[[], object], num_runs: int) -> float:
    """Seconds of a run, after one that does not count."""
    seconds = []
    for _ in range(num_runs + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
