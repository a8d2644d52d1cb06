"""What the GPU benchmarks found: printed row by row as it comes, then written."""

import fnmatch
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton

from services.generator.core.launch import Launch

Steps = Mapping[Launch, int]


class Results:
    """Medians by the names of their rows, and how the steps of each were launched.

    Args:
        pattern: for the names of rows that are wanted.
    """

    def __init__(self, pattern: str) -> None:
        self.medians: dict[str, float] = {}
        self._steps: dict[str, Counter[Launch]] = {}
        self._pattern = pattern

    def wants(self, name: str) -> bool:
        """Whether the row is asked for."""
        return fnmatch.fnmatch(name, self._pattern)

    def measure(
        self, num_steps: Callable[[], Steps], name: str, work: Callable[[], float], **compared: float | None
    ) -> None:
        """Run the work of a row that is wanted and keep what it answers, with the steps that it took.

        Args:
            num_steps: the engine's counts so far.
        """
        if not self.wants(name):
            return
        before = num_steps()
        value = work()
        self._steps[name] = Counter(num_steps()) - Counter(before)
        self.add(name, value, **compared)

    def add(self, name: str, value: float, **compared: float | None) -> None:
        """Keep and print a row."""
        self.medians[name] = round(value, 3)
        others = "  ".join(f"{key} {number}" for key, number in compared.items() if number is not None)
        print(f"{name:44} {value:9.3f}   {others:35} {self._launches(name)}", flush=True)

    def write(self, folder: Path, commit: str) -> None:
        """The medians of now, over those of earlier runs for other rows, and a line for each row in the history."""
        folder.mkdir(parents=True, exist_ok=True)
        latest = folder / "h200-latest.json"
        kept = json.loads(latest.read_text(encoding="utf-8")) if latest.exists() else {}
        latest.write_text(json.dumps({**kept, **self.medians}, indent=1) + "\n", encoding="utf-8")
        about = {"commit": commit, **_machine()}
        with (folder / "generator-gpu.jsonl").open("a", encoding="utf-8") as file:
            for name, value in self.medians.items():
                steps = {"steps": self._steps[name]} if name in self._steps else {}
                file.write(json.dumps({"row": name, "median": value, **steps, **about}) + "\n")

    def _launches(self, name: str) -> str:
        steps = self._steps.get(name)
        if not steps:
            return ""
        replayed = steps[Launch.REPLAY] / steps.total()
        return f"replayed {replayed:.1%} of {steps.total()} steps, fall-backs {steps[Launch.NO_GRAPH]}"


def _machine() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
    }
