"""`python -m tools.check_sizes`: no Python file, function or parameter list is longer than the house allows.

Run by `make lint`. Kernels answer for the length of their files only, tests may be longer and take any number of fixtures.
With --advice it also lists, without failing, what is over the size that is aimed at.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.source_files import ROOT, source_files

KERNELS = ("services/generator/kernels/", "shared/modeling/kernels/")


@dataclass(frozen=True)
class Limits:
    """At most so many; None is any number."""

    file_lines: int | None
    function_lines: int | None
    parameters: int | None


HARD = Limits(file_lines=400, function_lines=60, parameters=6)
HARD_TESTS = Limits(file_lines=600, function_lines=60, parameters=None)
HARD_KERNELS = Limits(file_lines=400, function_lines=None, parameters=None)
AIM = Limits(file_lines=200, function_lines=35, parameters=None)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print what is too long; answers the exit code, 1 if anything is over a hard limit."""
    parser = argparse.ArgumentParser(prog="python -m tools.check_sizes", description="Checks sizes of Python code.")
    parser.add_argument("--advice", action="store_true", help="also list what is over the size that is aimed at")
    options = parser.parse_args(arguments)
    num_errors = 0
    for path in source_files(root, "*.py"):
        name = path.relative_to(root).as_posix()
        source = path.read_text(encoding="utf-8")
        for finding in check(source, _hard_limits(name)):
            num_errors += 1
            print(f"{name}:{finding}")
        if options.advice:
            for finding in check(source, AIM):
                print(f"{name}:{finding} (advice)")
    return 1 if num_errors else 0


def check(source: str, limits: Limits) -> Iterator[str]:
    """What in `source` is over `limits`, each as `LINE: message`."""
    yield from _over(1, "the file has", source.count("\n"), "lines", limits.file_lines)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _check_function(node, limits)


def _check_function(node: ast.FunctionDef | ast.AsyncFunctionDef, limits: Limits) -> Iterator[str]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    num_parameters = sum(each.arg not in ("self", "cls") for each in arguments)
    num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
    subject = f"{node.name}() has"
    yield from _over(node.lineno, subject, num_lines, "lines", limits.function_lines)
    yield from _over(node.lineno, subject, num_parameters, "parameters", limits.parameters)


def _over(line: int, subject: str, number: int, unit: str, limit: int | None) -> Iterator[str]:
    if limit is not None and number > limit:
        yield f"{line}: {subject} {number} {unit}; at most {limit}"


def _hard_limits(name: str) -> Limits:
    if name.startswith("tests/"):
        return HARD_TESTS
    return HARD_KERNELS if name.startswith(KERNELS) else HARD


if __name__ == "__main__":
    sys.exit(main())
