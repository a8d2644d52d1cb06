"""What the programs of this folder find: each row is printed and written as it comes, so that a run cut short keeps what it had.

One file of lines, the history; and one of medians by name, of the last run of each row. Read by people and by `peers`.
"""

import argparse
import fnmatch
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.commit import current_commit
from benchmarks.machine import machine
from services.generator.core.launch import Launch

LATEST = "h200-latest.json"
Steps = Mapping[Launch, int]


def parser_of(program: str, description: str, rows: str = "*") -> argparse.ArgumentParser:
    """The options that `Results` reads; a program may add its own.

    Args:
        program: module below `benchmarks`.
        rows: the pattern where none is given.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=description)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--rows", default=rows, help="pattern for the names of rows")
    parser.add_argument("--commit", default=current_commit(), help="what the rows say they measured")
    parser.add_argument("--tiny", action="store_true", help="a tiny model; the figures mean nothing and are not kept")
    return parser


class Results:
    """Rows by name, each the median of its runs.

    Args:
        options: of `parser_of`.
        history: name of the file of lines.
    """

    def __init__(self, options: argparse.Namespace, history: str) -> None:
        self._pattern: str = options.rows
        self._folder: Path | None = None if options.tiny else options.out
        self._history = history
        self._commit: str = options.commit
        self._has_rows = False

    def wants(self, name: str) -> bool:
        """Whether the row is asked for."""
        return fnmatch.fnmatch(name, self._pattern)

    def measure(
        self,
        name: str,
        work: Callable[[], Sequence[float]],
        num_steps: Callable[[], Steps] | None = None,
        **compared: float | None,
    ) -> None:
        """Run the work of a row that is wanted and keep the runs that it answers.

        Args:
            num_steps: an engine's counts so far, from which it is said how the row's steps were launched.
        """
        if not self.wants(name):
            return
        before = num_steps() if num_steps else {}
        runs = work()
        self.add(name, runs, Counter(num_steps()) - Counter(before) if num_steps else None, **compared)

    def add(self, name: str, runs: Sequence[float], steps: Steps | None = None, **compared: float | None) -> None:
        """Print and write a row that is wanted; what it is compared with is printed only."""
        if not self.wants(name):
            return
        self._has_rows = True
        median = round(statistics.median(runs), 4)
        others = "  ".join(f"{key} {number}" for key, number in compared.items() if number is not None)
        print(f"{name:52} {median:10.3f}   {others:35} {_launches(steps)}".rstrip(), flush=True)
        if self._folder is not None:
            row = {"row": name, "median": median, "runs": [round(run, 4) for run in runs]}
            self._write(self._folder, row | ({"steps": steps} if steps else {}))

    def check_any(self) -> None:
        """Raise SystemExit where no row was asked for, at the end of a program."""
        if not self._has_rows:
            raise SystemExit(f"--rows {self._pattern}: no row has such a name")

    def _write(self, folder: Path, row: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        latest = folder / LATEST
        medians = json.loads(latest.read_text(encoding="utf-8")) if latest.exists() else {}
        changed = latest.with_suffix(".part")
        changed.write_text(json.dumps({**medians, row["row"]: row["median"]}, indent=1) + "\n", encoding="utf-8")
        changed.replace(latest)
        about = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": self._commit, **machine()}
        with (folder / self._history).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, **about}) + "\n")


def _launches(steps: Steps | None) -> str:
    if not steps:
        return ""
    total = sum(steps.values())
    return f"replayed {steps.get(Launch.REPLAY, 0) / total:.1%} of {total} steps, fall-backs {steps.get(Launch.NO_GRAPH, 0)}"
