"""Makes the corpus: `python -m examples.reranker.corpus --work FOLDER --out FOLDER/pairs.jsonl.xz`.

Fetches the packages of `sources` and takes in docstrings of what is installed. Needs Debian's `apt-get` and `npm`, no GPU.
"""

import argparse
import gzip
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from examples.reranker.dictionaries import read_dictionary, read_factbook
from examples.reranker.docstrings import docstring_pairs
from examples.reranker.manuals import read_man, read_pod
from examples.reranker.markup import read_markup
from examples.reranker.pairs import Pair, without_repeats, write_pairs
from examples.reranker.queries import dictionary_pairs, field_pairs, prose_pairs
from examples.reranker.sections import Section, sections_of
from examples.reranker.sources import SOURCES, Source, files_of

_BLOCK_READERS = {"markup": read_markup, "man": read_man, "pod": read_pod}
_MAX_DOCSTRINGS = 8000


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch, read, write; answers the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.reranker.corpus", description="Make the reranker's corpus."
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for what is fetched; used again if it is there"
    )
    parser.add_argument("--out", type=Path, required=True, help="the file to write, .jsonl.xz")
    parser.add_argument("--sources", nargs="+", default=[source.name for source in SOURCES], help="to take part")
    args = parser.parse_args(argv)
    pairs: list[Pair] = []
    for source in SOURCES:
        if source.name in args.sources:
            pairs += _sample(_pairs_of(source, args.work), source.max_pairs)
    pairs = without_repeats([*pairs, *_sample(docstring_pairs(), _MAX_DOCSTRINGS)])
    write_pairs(pairs, args.out)
    for (source_name, kind), count in sorted(Counter((pair.source, pair.kind) for pair in pairs).items()):
        sys.stdout.write(f"{source_name:20} {kind:10} {count}\n")
    return 0


def _sample(pairs: Iterable[Pair], count: int) -> list[Pair]:
    found = without_repeats(pairs)
    return random.Random(0).sample(found, min(count, len(found)))


def _pairs_of(source: Source, work: Path) -> Iterator[Pair]:
    documents = [(name, _read(path)) for name, path in files_of(source, work)]
    chance = random.Random(source.name)
    if source.format in _BLOCK_READERS:
        read = _BLOCK_READERS[source.format]
        words = frozenset(word for _, text in documents for word in re.findall(r"[a-z]{2,}", text))
        for name, text in documents:
            yield from prose_pairs(name, sections_of(read(text)), words, chance)
        return
    for name, text in documents:
        if source.format == "dictionary":
            yield from dictionary_pairs(name, _in_full(read_dictionary(text)), chance)
        else:
            yield from field_pairs(name, read_factbook(text), chance)


def _in_full(sections: Iterable[Section]) -> list[Section]:
    """A word's first article only: of several none is the one that was asked for."""
    first: dict[str, Section] = {}
    for section in sections:
        first.setdefault(section.heading.lower(), section)
    return list(first.values())


def _read(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix in (".gz", ".dz") else content).decode("utf-8", errors="replace")


if __name__ == "__main__":
    raise SystemExit(main())
