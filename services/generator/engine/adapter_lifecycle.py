"""Runs the life of adapters between the steps of the engine: commands, files on their way, folders that come and go.

Called by the engine loop, on its thread, which so stays the only writer of the ledger. Files are read by `adapter_loader` and
`adapter_scanner` on threads of their own; what they found is taken up here, at most once a step. Must not touch a slot's tensors.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from services.generator.adapters.packed import PackedAdapter
from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.messages import (
    AdapterAnswer,
    AdapterChanges,
    AdapterCommand,
    AdapterOutcome,
    LoadAdapter,
    PinAdapter,
    UnloadAdapter,
)
from services.generator.engine.adapter_catalog import AdapterCatalog
from services.generator.engine.adapter_loader import AdapterLoader, AdapterPlace, ReadJob, ReadResult
from services.generator.engine.adapter_scanner import AdapterScanner
from services.generator.engine.adapter_snapshots import AdapterSnapshots
from services.generator.settings import ADAPTER_NAME, ADAPTER_NAME_RULE
from shared.errors import (
    AdapterConflictError,
    AdapterNotFoundError,
    InvalidRequestError,
    OverloadedError,
    ServiceError,
)
from shared.observability.logging import get_logger

log = get_logger(__name__)

MAX_OPEN_JOBS = 2
"""Adapters that are being read or about to be, so that the thread is never idle and what is wanted most can still change."""

TELL_S = 0.2
"""Seconds between two messages about adapters while there is work."""

MS_PER_S = 1000


@dataclass(slots=True)
class Turn:
    """What a turn came to: answers, and changes for every API process, which come first; and adapters that cannot be read."""

    answers: list[tuple[str, AdapterAnswer]] = field(default_factory=list)
    changes: AdapterChanges | None = None
    failed: list[tuple[AdapterVersion, str]] = field(default_factory=list)


class AdapterLifecycle:
    """All adapters of one engine.

    Args:
        scanner: None where there is no root.
        max_wait_s: how long a request waits before versions that others merely wait for give way.
    """

    def __init__(
        self,
        snapshots: AdapterSnapshots,
        catalog: AdapterCatalog,
        loader: AdapterLoader,
        scanner: AdapterScanner | None,
        *,
        base_name: str,
        max_wait_s: float,
    ) -> None:
        self.snapshots = snapshots
        self._registry = snapshots.registry
        self._catalog = catalog
        self._loader = loader
        self._scanner = scanner
        self._base_name = base_name
        self._max_wait_ms = int(max_wait_s * MS_PER_S)
        self._turn = Turn()
        self._told_at = 0.0
        self._wake: Callable[[], None] = lambda: None

    # --- called by the loop ---

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to look for new folders.

        Args:
            wake: makes the loop take a turn soon; called on other threads.
        """
        self._wake = wake
        if self._scanner is not None:
            self._scanner.start(wake)

    def close(self) -> None:
        """End the threads."""
        if self._scanner is not None:
            self._scanner.close()
        self._loader.close()

    @property
    def has_news(self) -> bool:
        """Whether a turn would find something that another thread did."""
        return self._loader.has_results or (self._scanner is not None and self._scanner.has_news)

    @property
    def is_reading(self) -> bool:
        """Whether files are being read."""
        return self._loader.num_open > 0

    def wait(self, timeout_s: float) -> None:
        """Wait until something was read."""
        self._loader.wait(timeout_s)

    def obey(self, frontend_id: str, command: AdapterCommand) -> None:
        """Begin what `command` says; the answer is part of some later turn."""
        try:
            match command:
                case LoadAdapter():
                    self._check_name(command.name)
                    self._read(ReadJob(command.name, command.path, call=(frontend_id, command)))
                case UnloadAdapter():
                    self._answer(frontend_id, self._unload(command))
                case PinAdapter():
                    self._pin(frontend_id, command)
        except ServiceError as error:
            self._answer(frontend_id, _refusal(command.call_id, error))

    def turn(self, now_ms: int, *, is_idle: bool) -> Turn:
        """Take up what was read and found, begin to read what requests wait for.

        Args:
            now_ms: by the scheduler's clock.
            is_idle: whether there is nothing else to do.
        """
        if self._loader.has_results:
            for result in self._loader.take():
                self._finish(result)
        if self._scanner is not None and (scan := self._scanner.take()) is not None:
            self._catalog.enter_scan(scan)
            self.snapshots.reject(scan.rejects)
        self._catalog.tidy()
        self._read_wanted(now_ms)
        turn, self._turn = self._turn, Turn()
        if self.snapshots.has_changes and (is_idle or turn.answers or time.monotonic() - self._told_at > TELL_S):
            turn.changes = self.snapshots.changes()
            self._told_at = time.monotonic()
        return turn

    # --- commands ---

    def _check_name(self, name: str) -> None:
        if not ADAPTER_NAME.fullmatch(name):
            raise InvalidRequestError(f"lora_name: {ADAPTER_NAME_RULE}", param="lora_name")
        if name == self._base_name:
            raise InvalidRequestError(f"lora_name: {name!r} is the base model", param="lora_name")

    def _unload(self, command: UnloadAdapter) -> AdapterAnswer:
        version = self._find(command.name)
        if version.num_requests and not command.drains:
            raise AdapterConflictError(
                f"{command.name!r} is in use by {version.num_requests} requests; with drain it is unloaded after them",
                param="lora_name",
            )
        self._registry.remove(command.name)
        is_gone = self._registry.is_gone(version)
        log.info("adapter_unloaded", name=command.name, is_draining=not is_gone)
        outcome = AdapterOutcome.UNLOADED if is_gone else AdapterOutcome.DRAINING
        return AdapterAnswer(command.call_id, outcome, version.digest)

    def _pin(self, frontend_id: str, command: PinAdapter) -> None:
        version = self._find(command.name)
        self._check_pin(command, version)
        if command.is_pinned and not version.is_in_host:
            self._read(ReadJob(command.name, self._catalog.place(version), call=(frontend_id, command)))
        else:
            self._answer(frontend_id, self._pinned(command, version))

    def _check_pin(self, command: PinAdapter, version: AdapterVersion) -> None:
        if command.is_pinned and not version.is_pinned and not self._registry.can_pin:
            raise AdapterConflictError("pinning one more would leave no slot for the others", param="lora_name")

    def _pinned(self, command: PinAdapter, version: AdapterVersion) -> AdapterAnswer:
        self._registry.pin(version, is_pinned=command.is_pinned)
        outcome = AdapterOutcome.PINNED if command.is_pinned else AdapterOutcome.UNPINNED
        return AdapterAnswer(command.call_id, outcome, version.digest)

    def _find(self, name: str) -> AdapterVersion:
        version = self._registry.find(name)
        if version is None:
            raise AdapterNotFoundError(f"lora_name: there is no adapter {name!r}", param="lora_name")
        return version

    def _answer(self, frontend_id: str, answer: AdapterAnswer) -> None:
        self._turn.answers.append((frontend_id, answer))

    # --- files ---

    def _read(self, job: ReadJob) -> None:
        self._loader.submit(job, self._wake)

    def _read_wanted(self, now_ms: int) -> None:
        """Begin to read what requests wait for, the longest wait first."""
        while self._loader.num_open < MAX_OPEN_JOBS:
            version = self._registry.next_wanted(now_ms - self._max_wait_ms)
            if version is None:
                return
            self._read(ReadJob(version.name, self._catalog.place(version), version=version))

    def _finish(self, result: ReadResult) -> None:
        self.snapshots.note_read(result.seconds)
        if result.job.version is not None:
            self._finish_wanted(result, result.job.version)
        elif result.job.call is not None:
            frontend_id, command = result.job.call
            try:
                answer = self._finish_call(result, command)
            except ServiceError as error:
                answer = _refusal(command.call_id, error)
            self._answer(frontend_id, answer)

    def _finish_wanted(self, result: ReadResult, version: AdapterVersion) -> None:
        self._registry.give_up(version)
        if version.is_in_host or self._registry.is_gone(version):
            return  # it was loaded by a command meanwhile, or nobody wants it any more
        if isinstance(result.outcome, ServiceError):
            log.warning("adapter_unreadable", name=version.name, reason=str(result.outcome))
            self._turn.failed.append((version, str(result.outcome)))
        else:
            self._catalog.fill(version, result.outcome.place, result.outcome.adapter)

    def _finish_call(self, result: ReadResult, command: LoadAdapter | PinAdapter) -> AdapterAnswer:
        if isinstance(result.outcome, ServiceError):
            raise result.outcome
        place, adapter = result.outcome.place, result.outcome.adapter
        if isinstance(command, PinAdapter):
            return self._finish_pin(command, place, adapter)
        report, digest = adapter.report, adapter.digest.hex()
        if command.is_dry_run:
            return AdapterAnswer(command.call_id, AdapterOutcome.CHECKED, digest, place.folder, report)
        version = self._registry.find(command.name)
        if version is not None and version.digest != digest and not command.may_replace:
            raise AdapterConflictError(f"{command.name!r} is in use for other content", param="lora_name")
        if version is not None and version.is_in_host and version.digest == digest:
            self._catalog.move(version, place)
            return AdapterAnswer(command.call_id, AdapterOutcome.UNCHANGED, digest, place.folder, report)
        self._make_room()
        self._catalog.serve(command.name, place, adapter)
        return AdapterAnswer(command.call_id, AdapterOutcome.LOADED, digest, place.folder, report)

    def _finish_pin(self, command: PinAdapter, place: AdapterPlace, adapter: PackedAdapter) -> AdapterAnswer:
        version = self._find(command.name)
        self._check_pin(command, version)  # again: others may have been pinned while its files were read
        if not version.is_in_host:
            self._make_room()
            self._catalog.fill(version, place, adapter)
        return self._pinned(command, version)

    def _make_room(self) -> None:
        if not self._registry.make_room():
            raise OverloadedError("every adapter in host memory is in use (--max-cpu-loras)", retry_after_s=5)


def _refusal(call_id: int, error: ServiceError) -> AdapterAnswer:
    return AdapterAnswer(call_id, error=error.code.value, problem=error.message, param=error.param)
