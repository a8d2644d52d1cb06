"""Queries and passages from text that installed packages ship: the docstrings of Python's library, numpy, torch and others.

Called by `corpus`. A docstring's first sentence is the query and the rest of it the passage that answers it; files are parsed,
never run. Each package's text stays under its own licence (PSF for Python, BSD for numpy and torch, Apache-2.0 for transformers);
only weights come out of it.
"""

import ast
import importlib.util
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from examples.reranker.pairs import Pair

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
_PASSAGE_CHARS = (150, 900)
_SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
_BLANKS = re.compile(r"\s+")
_SENTENCE_END = re.compile(r"\.(?:\s|$)|\n\s*\n")


def docstring_pairs(packages: Sequence[str] = DEFAULT_PACKAGES) -> Iterator[Pair]:
    """All pairs of `packages`; one that is not installed has none."""
    for package in packages:
        for path in _files(package):
            yield from _pairs_of(path, package)


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
    document = f"docstrings/{package}/{path.parent.name}/{path.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            pair = _pair(ast.get_docstring(node), document, getattr(node, "lineno", 0))
            if pair is not None:
                yield pair


def _pair(docstring: str | None, document: str, line: int) -> Pair | None:
    """None where the docstring has no first sentence of some words with a text of some length behind it."""
    end = _SENTENCE_END.search(docstring or "")
    if docstring is None or end is None:
        return None
    query = _BLANKS.sub(" ", docstring[: end.start()]).strip()
    passage = _BLANKS.sub(" ", docstring[end.end() :]).strip()[: _PASSAGE_CHARS[1]]
    if len(query.split()) not in _QUERY_WORDS or len(passage) < _PASSAGE_CHARS[0]:
        return None
    return Pair(query, passage, document, f"{document}#{line}", "docstring")
