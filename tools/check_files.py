"""`python -m tools.check_files`: every file is clean text or small, can be parsed where it is data, and holds no secret.

Run by `make lint` and before each commit. Knows nothing of Python code, which ruff looks at.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.source_files import ROOT, source_files

MAX_BYTES = 8 * 2**20
"""The largest file is the reranker's delta of weights."""

_UNWANTED = {
    "a trailing blank": re.compile(r"[ \t\r]$"),
    "a conflict marker": re.compile(r"^(<{7}|>{7}|={7}$)"),
    "a private key": re.compile("-----BEGIN [A-Z ]*PRIVATE " + "KEY-----"),
}


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".yaml": lambda text: list(yaml.parse(text)),
    ".yml": lambda text: list(yaml.parse(text)),
}


def main(root: Path = ROOT) -> int:
    """Print what is wrong with each file; answers the exit code."""
    num_errors = 0
    for path in source_files(root):
        for finding in check(path):
            num_errors += 1
            print(f"{path.relative_to(root)}:{finding}")
    return 1 if num_errors else 0


def check(path: Path) -> Iterator[str]:
    """What is wrong with one file, each as `LINE: message`."""
    content = path.read_bytes()
    if len(content) > MAX_BYTES:
        yield f"1: {len(content)} bytes; at most {MAX_BYTES}"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.split("\n"), start=1):
        for name, pattern in _UNWANTED.items():
            if pattern.search(line):
                yield f"{number}: {name}"
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        yield f"{text.count(chr(10)) + 1}: the file should end with one line break"
    if parse := _PARSERS.get(path.suffix):
        try:
            parse(text)
        except (ValueError, yaml.YAMLError) as error:
            yield f"1: cannot be parsed: {error}"


if __name__ == "__main__":
    sys.exit(main())
