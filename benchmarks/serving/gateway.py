"""What the gateway adds to the latency of a call: embeddings of one short text, through it and past it.

Run as `python -m benchmarks.serving.gateway`; prints a table with a row for each round. One connection to each; the two take turns
call by call, so that a busy machine slows both, and what counts is the median of the differences.
"""

import argparse
import contextlib
import http.client
import json
import statistics
import time
from collections.abc import Iterator

from benchmarks.serving.services import START_TIMEOUT_S, Service, running, service

MODEL = "models/all-minilm-l6-v2"
BODY = json.dumps({"model": "all-minilm-l6-v2", "input": "A lighthouse at the end of the pier."}).encode()
NUM_WARM_UP_CALLS = 50


class Caller:
    """One connection to one service."""

    def __init__(self, target: Service) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)

    def call(self) -> float:
        """Seconds that one embedding took.

        Raises:
            RuntimeError: it was refused.
        """
        start = time.perf_counter()
        self._connection.request("POST", "/v1/embeddings", BODY, {"content-type": "application/json"})
        response = self._connection.getresponse()
        content = response.read()
        seconds = time.perf_counter() - start
        if response.status != http.client.OK:
            raise RuntimeError(f"answered {response.status}: {content[:200]!r}")
        return seconds

    def wait_served(self) -> None:
        """Return after the first call that succeeds: a gateway learns a moment after its start that a service is ready."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):
                self.call()
                return
            time.sleep(0.1)
        raise SystemExit("no embedding came through")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextlib.contextmanager
def caller(target: Service) -> Iterator[Caller]:
    """A caller of `target` that has warmed it up."""
    with contextlib.closing(Caller(target)) as made:
        made.wait_served()
        for _ in range(NUM_WARM_UP_CALLS):
            made.call()
        yield made


def compare(embedder: Service, gateway: Service, rounds: int, calls: int) -> None:
    """Take turns and print each round's medians, and those of all calls."""
    every: list[tuple[float, float]] = []
    print(f"{'round':>6} {'direct ms':>11} {'gateway ms':>12} {'added ms':>10}")
    with caller(embedder) as direct, caller(gateway) as through:
        for index in range(rounds):
            pairs = []
            for turn in range(calls):
                first, second = (direct, through) if turn % 2 == 0 else (through, direct)
                times = first.call(), second.call()
                pairs.append(times if first is direct else times[::-1])
            every += pairs
            print_row(str(index + 1), pairs)
    print_row("all", every)


def print_row(name: str, pairs: list[tuple[float, float]]) -> None:
    """The medians of both sides and of the difference."""
    direct, through = zip(*pairs, strict=True)
    added = statistics.median(b - a for a, b in pairs)
    medians = statistics.median(direct), statistics.median(through), added
    print(f"{name:>6} {medians[0] * 1e3:>11.2f} {medians[1] * 1e3:>12.2f} {medians[2] * 1e3:>10.2f}", flush=True)


def main() -> None:
    """Parse, start the services, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200, help="calls of each side in a round")
    arguments = parser.parse_args()
    embedder = service("embedder", "--model", MODEL)
    gateway = service("gateway", "--embedder-url", embedder.url, started_path="/health")
    with running(embedder, gateway):
        compare(embedder, gateway, arguments.rounds, arguments.calls)


if __name__ == "__main__":
    main()
