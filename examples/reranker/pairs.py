"""Queries and passages from text that installed packages ship: the docstrings of Python's library, numpy, torch and others.

Used by `train`. A docstring's first sentence is the query and the rest of it the passage that answers it; files are parsed, never
run. Each package's text stays under its own licence (PSF for Python, BSD for numpy and torch, Apache-2.0 for transformers); only
weights come out of it.
"""

import ast
import hashlib
import importlib.util
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

STANDARD_LIBRARY = "python"
DEFAULT_PACKAGES = (
    STANDARD_LIBRARY,
    "numpy",
    "torch",
    "transformers",
    "pydantic",
    "httpx",
    "fastapi",
    "huggingface_hub",
)
_QUERY_WORDS = range(4, 25)
_PASSAGE_CHARS = (150, 1200)
_SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
_BLANKS = re.compile(r"\s+")
_SENTENCE_END = re.compile(r"\.(?:\s|$)|\n\s*\n")


@dataclass(frozen=True)
class Pair:
    """A query and the passage that answers it; `source` is the file both come from."""

    query: str
    passage: str
    source: str


@dataclass(frozen=True)
class Split:
    """Pairs to learn from and pairs to measure on; no file is in both."""

    train: list[Pair]
    held_out: list[Pair]


def collect_pairs(packages: Sequence[str]) -> list[Pair]:
    """All pairs of `packages`; queries and passages that occur twice are left out, since neither could be told apart."""
    pairs = [pair for package in packages for path in _files(package) for pair in _pairs_of(path, package)]
    queries, passages = _counts(pair.query.lower() for pair in pairs), _counts(pair.passage for pair in pairs)
    return [pair for pair in pairs if queries[pair.query.lower()] == 1 and passages[pair.passage] == 1]


def split_pairs(pairs: Sequence[Pair], held_out_share: float) -> Split:
    """Divide by a hash of the file's name, so that the same file always falls on the same side."""
    split = Split([], [])
    for pair in pairs:
        digest = hashlib.sha256(pair.source.encode()).digest()
        is_held_out = int.from_bytes(digest[:4], "big") < held_out_share * 2**32
        (split.held_out if is_held_out else split.train).append(pair)
    return split


def _files(package: str) -> Iterator[Path]:
    if package == STANDARD_LIBRARY:
        root = Path(sysconfig.get_path("stdlib"))
    else:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            return
        root = Path(found.origin).parent
    for path in sorted(root.rglob("*.py")):
        if not _SKIPPED_FOLDERS & set(path.relative_to(root).parts):
            yield path


def _pairs_of(path: Path, package: str) -> Iterator[Pair]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    source = f"{package}/{path.parent.name}/{path.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            pair = _pair(ast.get_docstring(node), source)
            if pair is not None:
                yield pair


def _pair(docstring: str | None, source: str) -> Pair | None:
    """None where the docstring has no first sentence of some words with a text of some length behind it."""
    end = _SENTENCE_END.search(docstring or "")
    if docstring is None or end is None:
        return None
    query = _BLANKS.sub(" ", docstring[: end.start()]).strip()
    passage = _BLANKS.sub(" ", docstring[end.end() :]).strip()[: _PASSAGE_CHARS[1]]
    if len(query.split()) not in _QUERY_WORDS or len(passage) < _PASSAGE_CHARS[0]:
        return None
    return Pair(query, passage, source)


def _counts(texts: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return counts
