"""`python -m benchmarks.gpu.encoders`: embedder and reranker on a GPU beside `transformers` and `CrossEncoder`, in one run.

Token ids in to float vectors on the host, and the same over HTTP; then one query with 1,000 documents. `--rows` is a
pattern for the names of rows; `--tiny` runs all of it in a tiny shape, on a CPU too; `--profile` prints the time of each kernel.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers

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
from benchmarks.gpu.results import Results, parser_of
from benchmarks.gpu.start import scratch_folder
from benchmarks.gpu.timing import time_runs
from benchmarks.serving.services import running, service
from services.embedder.settings import EmbedderSettings
from shared.batching.micro_batcher import BatcherSpec, MicroBatcher
from shared.modeling.text_encoder import TextEncoder, load_text_encoder

TINY = Shape("tiny", 128, 2, 0, 0)
NUM_CHECKED, QUERY_LEN = 128, 16
QUEUE = ("--max-queue-tokens", str(2**21))


def main() -> None:
    """Run the rows that match."""
    parser = parser_of("gpu.encoders", "Times embedder and reranker on a GPU beside transformers.")
    parser.add_argument("--profile", action="store_true", help="print the kernels of one pass of ours")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    results = Results(options, "encoders-gpu.jsonl")
    with scratch_folder() as scratch:
        for shape in (TINY,) if options.tiny else (BASE, LARGE):
            folder = write_encoder(scratch / shape.name, shape)
            sequences = random_sequences(64 if options.tiny else NUM_SEQUENCES)
            time_encoder(results, shape, folder, sequences, has_profile=options.profile)
        shape = TINY if options.tiny else BASE
        folder = write_cross_encoder(scratch / "cross-encoder", shape)
        time_reranker(results, shape, folder, random_documents(20 if options.tiny else 1000))
    results.check_any()


def time_encoder(
    results: Results, shape: Shape, folder: Path, sequences: Sequence[list[int]], *, has_profile: bool
) -> None:
    """The rows of one shape: in this process, then over HTTP, when the memory of what ran here is free again."""
    time_in_process(results, shape, folder, sequences, has_profile=has_profile)
    torch.cuda.empty_cache()

    def over_http() -> list[float]:
        flags = ("--model", str(folder), "--dtype", "bfloat16", "--pooling", "mean", "--no-normalize", *QUEUE)
        with running(embedder := service("embedder", *flags)):
            return rates(sequences, time_runs(lambda: embed_over_http(embedder.url, sequences), 3))

    results.measure(f"{shape.name}, ours over HTTP, k tok/s", over_http)


def time_in_process(
    results: Results, shape: Shape, folder: Path, sequences: Sequence[list[int]], *, has_profile: bool
) -> None:
    """The peer twice, ours, and both with one short query."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    peer = load_peer(folder, device, torch.bfloat16)
    settings = EmbedderSettings(model=str(folder), dtype="bfloat16", pooling="mean", normalize=False)
    encoder = load_text_encoder(settings)
    few = sequences[:NUM_CHECKED]
    exact = embed(load_peer(folder, device, torch.float32), few, 16, is_sorted=True)
    vectors = asyncio.run(through_batcher(encoder, settings, few, num_runs=1))[0]
    print(f"{shape.name}: {check(vectors, embed(peer, few, 1, is_sorted=False), exact)}", flush=True)

    def theirs(size: int, *, is_sorted: bool) -> list[float]:
        return rates(sequences, time_runs(lambda: embed(peer, sequences, size, is_sorted=is_sorted), 3))

    def ours() -> list[float]:
        return rates(sequences, asyncio.run(through_batcher(encoder, settings, sequences, num_runs=5))[1])

    for name, size, is_sorted in (("batches of 32 as they come", 32, False), ("sorted, batches of 128", 128, True)):
        work = partial(theirs, size, is_sorted=is_sorted)
        results.measure(f"{shape.name}, transformers, {name}, k tok/s", work)
    results.measure(f"{shape.name}, ours, k tok/s", ours, limit=shape.limit, goal=shape.goal)
    if has_profile:
        print_profile(encoder, settings, sequences)
    query = [sequences[0][:QUERY_LEN]]
    works = {
        "transformers": lambda: embed(peer, query, 1, is_sorted=False),
        "ours": lambda: encoder.launch(query).wait(),
    }
    for name, answer in works.items():
        results.measure(f"{shape.name}, one query of {QUERY_LEN} tokens, {name}, ms", partial(query_ms, answer))


def rates(sequences: Sequence[list[int]], seconds: Sequence[float]) -> list[float]:
    """Thousands of tokens a second in runs that took so long."""
    num_k_tokens = sum(map(len, sequences)) / 1000
    return [num_k_tokens / run for run in seconds]


def query_ms(answer: Callable[[], object]) -> list[float]:
    """Milliseconds of each of many runs."""
    return [1000 * seconds for seconds in time_runs(answer, 50)]


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


def time_reranker(results: Results, shape: Shape, folder: Path, documents: Sequence[str]) -> None:
    """One query with many documents: the peer's `predict`, ours over HTTP; it is to be 1.5 times as fast."""
    query = "w7 w8 w9 w10 w11 w12"

    def ours() -> list[float]:
        with running(reranker := service("reranker", "--model", str(folder), "--dtype", "bfloat16", *QUEUE)):
            return time_runs(lambda: rerank_over_http(reranker.url, query, documents), 7)

    name = f"{shape.name} cross-encoder, 1 x {len(documents)} documents, p50 s"
    pairs = [(query, document) for document in documents]
    results.measure(f"{name}, CrossEncoder.predict", partial(predict_s, folder, pairs))
    results.measure(f"{name}, ours over HTTP", ours)


def predict_s(folder: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """Seconds of the peer's `predict`, which sorts by length and takes batches of 32."""
    from sentence_transformers import CrossEncoder

    device = "cuda" if torch.cuda.is_available() else "cpu"
    peer = CrossEncoder(str(folder), device=device, model_kwargs={"dtype": torch.bfloat16})
    return time_runs(lambda: peer.predict(pairs, show_progress_bar=False), 5)


if __name__ == "__main__":
    main()
