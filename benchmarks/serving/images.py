"""Images that come again against new ones, and what images do to those who stream text meanwhile, in one service on the CPU.

Run as `python -m benchmarks.serving.images`, with `--tower large` for a tower of real size with random weights. Only ratios count:
what is compared takes turns. Goals: a request whose image was seen before, behind another text, has its first token in at most 0.6
of the time of one whose image is new; every different image is encoded once; no more rows are held than `--encoder-cache-size`.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving.image_streams import CACHE_ROWS, compare_streams
from benchmarks.serving.metrics_reader import read_metrics
from benchmarks.serving.photos import HEIGHT, WIDTH, chat_body, photo
from benchmarks.serving.services import Service, running, service
from benchmarks.serving.towers import TOWERS, write_model

MODEL = Path("models/smollm2-135m-vision")
GOAL = 0.6
ONE_IMAGE = 1
"""--max-num-encoder-tokens that no two images fit into; one alone is always encoded."""


def first_token_s(client: httpx.Client, body: dict[str, Any]) -> float:
    """Seconds to the whole answer to a request for one token."""
    start = time.perf_counter()
    client.post("/v1/chat/completions", json=body).raise_for_status()
    return time.perf_counter() - start


def compare_repeats(url: str, kind: str, rounds: int) -> None:
    """For each of `rounds` images of `kind`: new, seen before behind another text, and once more behind the same text."""
    new, seen, again = [], [], []
    with httpx.Client(base_url=url, timeout=300) as client:
        first_token_s(client, chat_body("Warm up.", [(photo(rounds, kind), kind)], 1))
        before = read_metrics(url)
        for number in range(rounds):
            files = [(photo(number, kind), kind)]
            first, other = (chat_body(f"{number} {word} {kind}. Look:", files, 1) for word in ("first", "second"))
            new.append(first_token_s(client, first))
            seen.append(first_token_s(client, other))
            again.append(first_token_s(client, other))
    after = read_metrics(url)
    names = ("encoded_images_total", "prepared_image_misses_total", "prepared_image_hits_total")
    encoded, prepared, hits = (int(after[name] - before[name]) for name in names)
    ratio = statistics.median(one / other for one, other in zip(seen, new, strict=True))
    write(f"{kind}, {WIDTH} x {HEIGHT}: medians of {rounds} images, seconds to the first token")
    write(f"  new image                    {statistics.median(new):7.3f}")
    write(f"  seen, behind another text    {statistics.median(seen):7.3f}   {ratio:5.2f} of new (goal: at most {GOAL})")
    same = statistics.median(one / other for one, other in zip(again, new, strict=True))
    write(
        f"  seen, behind the same text   {statistics.median(again):7.3f}   {same:5.2f} of new: a hit in the prefix cache"
    )
    write(f"  encoded {encoded}, prepared {prepared}, known as files {hits} of {3 * rounds} (goal: {rounds} encoded)")


def write(line: str) -> None:
    """One line of the report, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def generator(folder: Path, *flags: str) -> Service:
    """The service that is measured."""
    shape = ("--max-model-len", "2048", "--encoder-cache-size", str(CACHE_ROWS))
    return service("generator", "--model", str(folder), *shape, *flags)


@contextlib.contextmanager
def model_folder(options: argparse.Namespace) -> Iterator[Path]:
    """The folder to serve, for as long as it is needed."""
    if options.tower == "own":
        yield options.model
        return
    with tempfile.TemporaryDirectory(prefix="trivium-bench-") as folder:
        write_model(Path(folder), options.tower)
        yield Path(folder)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument(
        "--tower", choices=("own", *TOWERS), default="own", help="a SigLIP tower with random weights instead of --model"
    )
    parser.add_argument("--rounds", type=int, default=5, help="images of a kind; rounds of images beside streams")
    options = parser.parse_args()
    if options.tower == "own" and not options.model.is_dir():
        parser.error(f"there is no {options.model}; --tower large needs none")
    with model_folder(options) as folder:
        default, smaller = generator(folder), generator(folder, "--max-num-encoder-tokens", str(ONE_IMAGE))
        with running(default) as pids:
            for kind in ("JPEG", "PNG"):
                compare_repeats(default.url, kind, options.rounds)
            compare_streams("default --max-num-encoder-tokens", default.url, pids["generator"], options.rounds, write)
        with running(smaller) as pids:
            compare_streams("one image a step", smaller.url, pids["generator"], options.rounds, write)


if __name__ == "__main__":
    main()
