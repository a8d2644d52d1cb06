"""Reads adapters beside the engine's loop: a queue of jobs in, results out, on one thread of its own.

Owned by `engine.adapter_lifecycle`, which decides what is read and takes the results. Touches no ledger and no slot.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from services.generator.adapters.folder_files import is_text, refusal
from services.generator.adapters.modules import AdapterTarget
from services.generator.adapters.packed import PackedAdapter
from services.generator.adapters.peft_folder import load_adapter
from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.messages import LoadAdapter, PinAdapter
from shared.errors import InternalError, ServiceError
from shared.observability.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """A folder; `root` is what all of its files must lie below, None where an operator named the folder itself."""

    folder: str
    root: Path | None


@dataclass(frozen=True, slots=True)
class ReadJob:
    """What to read, and for whom: `version` where requests wait for it, `call` where an API process asked.

    Attributes:
        place: or a path, which has to be found below a root first.
    """

    name: str
    place: AdapterPlace | str
    version: AdapterVersion | None = None
    call: tuple[str, LoadAdapter | PinAdapter] | None = None


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """An adapter, and where it was found."""

    place: AdapterPlace
    adapter: PackedAdapter


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What came of a job."""

    job: ReadJob
    outcome: ReadAdapter | ServiceError
    seconds: float


class AdapterLoader:
    """One thread; nothing runs before the first job.

    Args:
        roots: what a path in a command must lead below.
    """

    def __init__(self, target: AdapterTarget, roots: Sequence[Path]) -> None:
        self._target = target
        self._roots = roots
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapter-loader")
        self._results: queue.SimpleQueue[ReadResult] = queue.SimpleQueue()
        self._has_results = threading.Event()
        self.num_open = 0

    def submit(self, job: ReadJob, on_done: Callable[[], None]) -> None:
        """Read in the background.

        Args:
            on_done: called on the loader's thread when the result is there.
        """
        self.num_open += 1
        self._thread.submit(self._run, job, on_done)

    def take(self) -> list[ReadResult]:
        """Results that are there."""
        self._has_results.clear()
        results = []
        while not self._results.empty():
            results.append(self._results.get())
        self.num_open -= len(results)
        return results

    @property
    def has_results(self) -> bool:
        """Whether there is something to take."""
        return not self._results.empty()

    def wait(self, timeout_s: float) -> None:
        """Wait for a result."""
        self._has_results.wait(timeout_s)

    def close(self) -> None:
        """End the thread; jobs that have not begun are dropped."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: ReadJob, on_done: Callable[[], None]) -> None:
        start = time.perf_counter()
        outcome = self._read(job)
        self._results.put(ReadResult(job, outcome, time.perf_counter() - start))
        self._has_results.set()
        on_done()

    def _read(self, job: ReadJob) -> ReadAdapter | ServiceError:
        try:
            place = find_below(job.place, self._roots) if isinstance(job.place, str) else job.place
            return ReadAdapter(place, load_adapter(Path(place.folder), self._target, place.root))
        except ServiceError as error:
            return error
        except Exception as error:
            log.error("adapter_load_failed", name=job.name, exc_info=error)
            return InternalError(f"reading it failed: {type(error).__name__}")


def find_below(path: str, roots: Sequence[Path]) -> AdapterPlace:
    """The folder that `path` leads to, links followed, and the root that it lies below.

    Raises:
        InvalidRequestError: it lies below none; what else there is on disk does not show.
    """
    for root in roots:
        try:
            real_root = root.resolve(strict=True)
            folder = (real_root / path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # not there, a loop of links, a name that no file can have
            continue
        if folder != real_root and folder.is_relative_to(real_root) and folder.is_dir() and is_text(folder):
            return AdapterPlace(str(folder), real_root)
    raise refusal("lora_path", "is no folder below a --lora-root" if roots else "needs a --lora-root to lie below")
