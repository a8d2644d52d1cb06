"""Reranking over HTTP against `CrossEncoder.predict` in this process, in turns on the same pairs, in one run.

`python -m benchmarks.serving.rerank`, with the embedded models in `models/`. Only the ratios mean anything on a shared machine. The
second table has the latency of short requests of many clients, beside the same peer called by one client at a time behind a lock.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving.embeddings import make_texts
from benchmarks.serving.services import running, service
from shared.settings.threads import set_thread_environment

QUERY = "which quiet towns does the river answer"
SHORT_DOCUMENTS = 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/minilm-reranker"))
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    options, extra = parser.parse_known_args()
    documents = make_texts(options.documents)
    peer = load_peer(options.model, options.threads)
    reranker = service("reranker", "--model", str(options.model), "--num-threads", str(options.threads), *extra)
    with running(reranker), httpx.Client(base_url=reranker.url, timeout=600) as client:
        whole = (partial(ask, client, documents), partial(predict, peer, documents))
        print_ratio(f"1 x {len(documents)} documents", *whole, options.rounds)
        short = documents[:SHORT_DOCUMENTS]
        lock = threading.Lock()
        print_latencies("served", partial(ask, client, short), options.clients)
        print_latencies("peer behind a lock", partial(predict_alone, peer, short, lock), options.clients)


def load_peer(model: Path, num_threads: int) -> Any:
    """sentence-transformers on the same folder, with the thread settings that the service gives itself."""
    set_thread_environment(num_threads)
    import torch  # reads the environment when it is imported
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(num_threads)
    return CrossEncoder(str(model), device="cpu")


def ask(client: httpx.Client, documents: Sequence[str]) -> None:
    """One request."""
    client.post("/rerank", json={"query": QUERY, "documents": list(documents)}).raise_for_status()


def predict(peer: Any, documents: Sequence[str]) -> None:
    """The peer on the same pairs."""
    peer.predict([(QUERY, document) for document in documents], show_progress_bar=False)


def predict_alone(peer: Any, documents: Sequence[str], lock: threading.Lock) -> None:
    """The peer, which one client has at a time."""
    with lock:
        predict(peer, documents)


def seconds_of(work: Callable[[], None]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def print_ratio(name: str, ours: Callable[[], None], peer: Callable[[], None], rounds: int) -> None:
    """The medians over `rounds`, the peer measured just before and just after ours."""
    ours(), peer()
    mine, theirs, ratios = [], [], []
    for _ in range(rounds):
        before, own, after = seconds_of(peer), seconds_of(ours), seconds_of(peer)
        mine.append(own)
        theirs.append((before + after) / 2)
        ratios.append(theirs[-1] / own)
    print(f"{'':<28}{'ours p50 s':>12}{'peer p50 s':>12}{'peer / ours':>13}{'spread':>14}")
    spread = f"{min(ratios):.2f} … {max(ratios):.2f}"
    medians = [statistics.median(values) for values in (mine, theirs, ratios)]
    print(f"{name:<28}{medians[0]:>12.3f}{medians[1]:>12.3f}{medians[2]:>12.2f}x{spread:>14}", flush=True)


def print_latencies(name: str, work: Callable[[], None], num_clients: int, num_requests: int = 200) -> None:
    """Median and 99th percentile of `num_requests` calls by `num_clients` at once."""
    work()
    with ThreadPoolExecutor(num_clients) as pool:
        seconds = sorted(pool.map(lambda _: seconds_of(work), range(num_requests)))
    p50, p99 = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)]
    print(
        f"{num_clients} clients x {SHORT_DOCUMENTS} documents, {name:<20}p50 {p50:.3f} s   p99 {p99:.3f} s", flush=True
    )


if __name__ == "__main__":
    main()
