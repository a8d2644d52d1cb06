"""Embeddings through the gateway against sentence-transformers in this process, in turns on the same texts, in one run.

`python -m benchmarks.serving.embeddings`, with the embedded models in `models/`. Only the ratios mean anything on a shared
machine: each round measures the peer just before and just after our case, and the table has the medians over the rounds.
The ratio of processor time (the embedder's against the peer's) is steadier than that of wall time when others use the machine too.
With `--peer-url` another server with the same model, say `infinity_emb v2 --served-model-name all-minilm-l6-v2`, is fed alike.
"""

import argparse
import fnmatch
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import psutil
from openai import OpenAI

from benchmarks.serving.services import running, service
from shared.settings.threads import set_thread_environment

PEER_BATCH_SIZE = 32
WORDS = ["the", "river", "model", "of", "a", "vector", "answers", "every", "query", "about", "quiet", "towns", "rain"]


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Sentences of 6 to 40 words."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(6, 40))) for _ in range(count)]


def send(client: OpenAI, texts: Sequence[str], per_request: int, num_clients: int, encoding: str) -> None:
    """Embed all `texts`, `per_request` at a time, by `num_clients` at once."""
    requests = [list(texts[start : start + per_request]) for start in range(0, len(texts), per_request)]
    arguments = {} if encoding == "base64" else {"encoding_format": "float"}

    def create(request: list[str]) -> None:
        client.embeddings.create(model="all-minilm-l6-v2", input=request, **arguments)  # type: ignore[arg-type]

    with ThreadPoolExecutor(num_clients) as pool:
        list(pool.map(create, requests))


class Seconds(NamedTuple):
    """Wall time, and processor time of the process that computes."""

    wall: float
    cpu: float


def seconds_of(work: Callable[[], object], process: psutil.Process) -> Seconds:
    """Time of one call, computed by `process`."""
    start, before = time.perf_counter(), sum(process.cpu_times()[:2])
    work()
    return Seconds(time.perf_counter() - start, sum(process.cpu_times()[:2]) - before)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/all-minilm-l6-v2")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-url", help="of a server whose path /embeddings is OpenAI's")
    parser.add_argument("--cases", default="*", help="pattern for the names of cases")
    options, extra = parser.parse_known_args()
    texts = make_texts(options.texts)
    peer = load_peer(options.model, options.threads)
    few, many = texts[:32], make_texts(64 * 16, seed=1)
    embedder = service("embedder", "--model", options.model, "--num-threads", str(options.threads), *extra)
    gateway = service("gateway", "--embedder-url", embedder.url, started_path="/health")
    with running(embedder, gateway) as pids:
        server = psutil.Process(pids["embedder"])
        client = OpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=600)
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
            "64 x 16, 64 clients": (partial(ask, many, 16, 64, "base64"), partial(encode_each, peer, many, 16)),
        }
        if options.peer_url:
            other = OpenAI(base_url=options.peer_url, api_key="none", timeout=600)
            for per_request, num_clients in ((16, 64), (1, 64)):
                peer_server = partial(send, other, many, per_request, num_clients, "float")
                ours = partial(ask, many, per_request, num_clients, "float")
                cases[f"{len(many) // per_request} x {per_request}, 64 clients, floats"] = (ours, peer_server)
        wanted = {name: case for name, case in cases.items() if fnmatch.fnmatch(name, options.cases)}
        measure(wanted, options.rounds, server)


def load_peer(model: str, num_threads: int) -> Any:
    """sentence-transformers with the thread settings that the embedder gives itself: on a busy machine they help it too."""
    set_thread_environment(num_threads)
    import torch  # reads the environment when it is imported
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(num_threads)
    return SentenceTransformer(model, device="cpu")


def encode_each(peer: Any, texts: Sequence[str], per_call: int = 1) -> None:
    """The peer on one request after another, as a server of one call at a time would have it."""
    for start in range(0, len(texts), per_call):
        peer.encode(list(texts[start : start + per_call]), show_progress_bar=False)


def measure(
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]], rounds: int, server: psutil.Process
) -> None:
    """Run every case in every round, its peer just before and just after, and print the medians."""
    for ours, peer in cases.values():
        ours(), peer()
    here = psutil.Process()
    print(f"{'requests x texts':<30}{'ours s':>9}{'peer s':>9}{'peer / ours':>13}{'spread':>14}{'in CPU time':>13}")
    for name, (ours, peer) in cases.items():
        wall, cpu, mine, theirs = [], [], [], []
        for _ in range(rounds):
            before, own, after = seconds_of(peer, here), seconds_of(ours, server), seconds_of(peer, here)
            mine.append(own.wall)
            theirs.append((before.wall + after.wall) / 2)
            wall.append(theirs[-1] / own.wall)
            cpu.append((before.cpu + after.cpu) / 2 / own.cpu)
        spread = f"{min(wall):.2f} … {max(wall):.2f}"
        print(
            f"{name:<30}{statistics.median(mine):>9.3f}{statistics.median(theirs):>9.3f}"
            f"{statistics.median(wall):>12.2f}x{spread:>14}{statistics.median(cpu):>12.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
