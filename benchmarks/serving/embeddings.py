"""The embedder over HTTP against sentence-transformers in this process, in turns on the same texts, in one run.

`python -m benchmarks.serving.embeddings`, with the embedded models in `models/`. Only the ratios mean anything on a shared
machine: each round measures the peer before and after our cases, and the table has the median of the rounds' ratios.
"""

import argparse
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import torch
from openai import OpenAI
from sentence_transformers import SentenceTransformer

PEER_BATCH_SIZE = 32
WORDS = ["the", "river", "model", "of", "a", "vector", "answers", "every", "query", "about", "quiet", "towns", "rain"]


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Sentences of 6 to 40 words."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(6, 40))) for _ in range(count)]


@contextmanager
def running_embedder(model: str, num_threads: int, extra: Sequence[str]) -> Iterator[str]:
    """The address of an embedder process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "services.embedder", "--model", model, "--port", str(port)]
    command += ["--num-threads", str(num_threads), "--log-level", "warning", *extra]
    process = subprocess.Popen(command)
    address = f"http://127.0.0.1:{port}"
    try:
        while not is_ready(address):
            if process.poll() is not None:
                raise SystemExit("the embedder did not start")
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()


def is_ready(address: str) -> bool:
    """Whether the embedder answers."""
    try:
        return httpx.get(f"{address}/ready").status_code == 200
    except httpx.TransportError:
        return False


def send(client: OpenAI, texts: Sequence[str], per_request: int, num_clients: int, encoding: str) -> None:
    """Embed all `texts`, `per_request` at a time, by `num_clients` at once."""
    requests = [list(texts[start : start + per_request]) for start in range(0, len(texts), per_request)]
    arguments = {} if encoding == "base64" else {"encoding_format": "float"}

    def create(request: list[str]) -> None:
        client.embeddings.create(model="all-minilm-l6-v2", input=request, **arguments)  # type: ignore[arg-type]

    with ThreadPoolExecutor(num_clients) as pool:
        list(pool.map(create, requests))


def seconds_of(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/all-minilm-l6-v2")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options, extra = parser.parse_known_args()
    torch.set_num_threads(options.threads)
    texts = make_texts(options.texts)
    peer = SentenceTransformer(options.model, device="cpu")
    few = texts[:32]
    with running_embedder(options.model, options.threads, extra) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none", timeout=600)
        ask = partial(send, client)
        peer_all = partial(peer.encode, texts, batch_size=PEER_BATCH_SIZE, show_progress_bar=False)
        peer_each = partial(encode_each, peer, few)
        cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            f"1 x {len(texts)}": (partial(ask, texts, len(texts), 1, "base64"), peer_all),
            f"1 x {len(texts)}, floats": (partial(ask, texts, len(texts), 1, "float"), peer_all),
            f"{len(texts) // 32} x 32, one after another": (partial(ask, texts, 32, 1, "base64"), peer_all),
            f"{len(texts) // 32} x 32, 8 clients": (partial(ask, texts, 32, 8, "base64"), peer_all),
            "32 x 1, one after another": (partial(ask, few, 1, 1, "base64"), peer_each),
            "32 x 1, 8 clients": (partial(ask, few, 1, 8, "base64"), peer_each),
        }
        measure(cases, options.rounds)


def encode_each(peer: SentenceTransformer, texts: Sequence[str]) -> None:
    """The peer on one text after another."""
    for text in texts:
        peer.encode(text, show_progress_bar=False)


def measure(cases: dict[str, tuple[Callable[[], object], Callable[[], object]]], rounds: int) -> None:
    """Run every case in every round, its peer just before and just after, and print the medians."""
    for ours, peer in cases.values():
        ours(), peer()
    print(f"{'requests x texts':<34}{'ours s':>9}{'peer s':>9}{'peer / ours':>13}   spread of the ratio")
    for name, (ours, peer) in cases.items():
        rows = []
        for _ in range(rounds):
            before, mine, after = seconds_of(peer), seconds_of(ours), seconds_of(peer)
            rows.append((mine, (before + after) / 2))
        ratios = sorted(theirs / mine for mine, theirs in rows)
        mine, theirs = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{name:<34}{mine:>9.3f}{theirs:>9.3f}{statistics.median(ratios):>12.2f}x"
            f"   {ratios[0]:.2f} … {ratios[-1]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
