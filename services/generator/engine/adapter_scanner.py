"""Looks which adapters there are below the roots: at the start, and every few seconds on a thread of its own.

Owned by `engine.adapter_lifecycle`. Reads configurations and the headers of weights, no values; a folder that looks as it did is
not read again. A linked folder is looked at, but not below it; what leads out of its root is a reject.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.generator.adapters.folder_files import Look, look_at, refusal, shown
from services.generator.adapters.modules import AdapterTarget
from services.generator.adapters.outline import inspect_adapter
from services.generator.adapters.peft_config import CONFIG
from services.generator.core.adapters import AdapterDescription, RejectedFolder, describe
from services.generator.engine.adapter_loader import AdapterPlace
from services.generator.settings import ADAPTER_NAME
from shared.errors import ServiceError
from shared.observability.logging import get_logger

log = get_logger(__name__)

MAX_DEPTH = 4
"""Folders between a root and an adapter, so that a root that was chosen too high does not keep the scanner busy for ever."""


@dataclass(frozen=True, slots=True)
class FoundAdapter:
    """A folder whose headers are right."""

    place: AdapterPlace
    description: AdapterDescription


@dataclass(frozen=True, slots=True)
class Scan:
    """All that is below the roots, by name; two folders of one name are one adapter, and a reject."""

    found: dict[str, FoundAdapter] = field(default_factory=dict)
    rejects: list[RejectedFolder] = field(default_factory=list)


class AdapterScanner:
    """The roots, in the order in which they are asked for a name.

    Args:
        reserved: the base model's name.
    """

    def __init__(self, roots: Sequence[Path], target: AdapterTarget, reserved: str, interval_s: float) -> None:
        self._roots = roots
        self._target = target
        self._reserved = reserved
        self._interval_s = interval_s
        self._known: dict[Path, tuple[Look, FoundAdapter | str]] = {}
        self._last: Scan | None = None
        self._news: queue.SimpleQueue[Scan] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_news: Callable[[], None]) -> None:
        """Look every few seconds from now on; `on_news` is called on the scanner's thread."""
        self._thread = threading.Thread(target=self._run, args=(on_news,), name="adapter-scanner", daemon=True)
        self._thread.start()

    @property
    def has_news(self) -> bool:
        """Whether there is something to take."""
        return not self._news.empty()

    def take(self) -> Scan | None:
        """What is there now, if that changed."""
        scan = None
        while not self._news.empty():
            scan = self._news.get()
        return scan

    def close(self) -> None:
        """End the thread."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join()

    def scan(self) -> Scan:
        """Look now."""
        scan = Scan()
        seen: dict[Path, tuple[Look, FoundAdapter | str]] = {}
        for root in self._roots:
            for folder in _folders(root):
                if self._is_closing.is_set():
                    break
                seen[folder] = self._inspect(root, folder)
                self._enter(scan, folder, seen[folder][1])
        self._known = seen
        return scan

    def _enter(self, scan: Scan, folder: Path, outcome: FoundAdapter | str) -> None:
        if isinstance(outcome, str):
            scan.rejects.append(RejectedFolder(shown(str(folder)), outcome))
        elif outcome.description.name in scan.found:
            reason = f"the name is that of {scan.found[outcome.description.name].place.folder}"
            scan.rejects.append(RejectedFolder(shown(str(folder)), reason))
        else:
            scan.found[outcome.description.name] = outcome

    def _inspect(self, root: Path, folder: Path) -> tuple[Look, FoundAdapter | str]:
        look = look_at(folder)
        known = self._known.get(folder)
        if known is not None and known[0] == look:
            return known
        name = folder.relative_to(root).as_posix()
        try:
            if not ADAPTER_NAME.fullmatch(name) or name == self._reserved:
                raise refusal(name, "cannot be the name of an adapter")
            report = inspect_adapter(folder, self._target, root)
        except ServiceError as error:
            return look, str(error)
        except Exception as error:
            log.error("adapter_scan_failed", folder=str(folder), exc_info=error)
            return look, f"reading it failed: {type(error).__name__}"
        return look, FoundAdapter(AdapterPlace(str(folder), root), describe(name, str(folder), report))

    def _run(self, on_news: Callable[[], None]) -> None:
        while not self._is_closing.wait(self._interval_s):
            scan = self.scan()
            if not self._is_closing.is_set() and scan != self._last:
                self._last = scan
                self._news.put(scan)
                on_news()


def _folders(root: Path) -> Iterator[Path]:
    """Folders with a configuration, in the order of their names; nothing inside of one is looked at."""
    for path, folders, files in os.walk(root, followlinks=False):
        folder = Path(path)
        folders.sort()
        yield from (folder / name for name in folders if _is_linked_adapter(folder / name))
        if CONFIG in files and folder != root:
            yield folder
            folders.clear()
        elif len(folder.relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()


def _is_linked_adapter(folder: Path) -> bool:
    return folder.is_symlink() and (folder / CONFIG).is_file()
