"""The one named thread that owns a model: loads it, then runs one batch after another.

Owned by MicroBatcher. Batches come in over one queue; each finished batch goes out as one call on the event loop. Where a device
works by itself, the next batch is launched before the one that runs is waited for, so that the device never waits for the host.
It must not decide what goes into a batch, nor touch what is the event loop's but through `call_soon_threadsafe`.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from shared.errors import InternalError
from shared.observability.logging import get_logger
from shared.settings.errors import StartError

log = get_logger(__name__)

Tokens = Sized
"""One sequence; its length is in tokens. What else it is, only its model knows."""
Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class ForwardSpec:
    """What one forward of a model is like.

    Attributes:
        max_tokens: tokens it may hold, padding included.
        has_padding: whether a sequence costs as many tokens as the longest beside it.
        max_in_flight: forwards that may be launched before the first is waited for; 1 where launching is computing.
    """

    max_tokens: int
    has_padding: bool = True
    max_in_flight: int = 1


class Launched(Protocol):
    """A forward under way."""

    def wait(self) -> Rows:
        """[sequences, N] float32, in the order of the batch, once they are there."""
        ...


class BatchModel(Protocol):
    """What the thread can own: something that turns a batch of sequences into one row of numbers for each."""

    @property
    def forward(self) -> ForwardSpec:
        """What its forwards are like."""
        ...

    def launch(self, batch: Sequence[Any]) -> Launched:
        """Begin the forward of `batch`, which is not empty."""
        ...


class Batch(Protocol):
    """What the thread runs."""

    def take_live(self) -> list[Tokens]:
        """The sequences somebody still waits for; called once, on the thread, just before the forward."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What came of a batch: a row for each live sequence (None if there was none), or the error that hit them all."""

    rows: Rows | None
    error: Exception | None
    started_at: float
    forward_s: float


AnyModel = TypeVar("AnyModel", bound=BatchModel)
AnyBatch = TypeVar("AnyBatch", bound=Batch)


class ModelThread(Generic[AnyModel, AnyBatch]):
    """Runs what is submitted, in order.

    Args:
        load: makes the model; called on the thread.
        on_loaded, on_finished, on_dead: called on the event loop; after `on_dead` nothing more will be.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], AnyModel],
        *,
        on_loaded: Callable[[AnyModel], None],
        on_finished: Callable[[AnyBatch, Outcome], None],
        on_dead: Callable[[str], None],
    ) -> None:
        self._load = load
        self._on_loaded = on_loaded
        self._on_finished = on_finished
        self._on_dead = on_dead
        self._inbox: queue.SimpleQueue[AnyBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to load; called on the event loop that will be told."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, batch: AnyBatch) -> None:
        """Run `batch` after those submitted before."""
        self._inbox.put(batch)

    async def stop(self, timeout_s: float) -> None:
        """End the thread after what is already submitted; wait for it at most `timeout_s`."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _main(self) -> None:
        try:
            model = self._load()
            self._tell(self._on_loaded, model)
            self._serve(model)
        except StartError as error:
            self._tell(self._on_dead, str(error))
        except BaseException as error:
            log.exception("model_thread_died")
            self._tell(self._on_dead, f"the model thread died of {type(error).__name__}")

    def _serve(self, model: BatchModel) -> None:
        in_flight: deque[tuple[AnyBatch, _Forward]] = deque()
        busy_until = 0.0
        while (batch := self._inbox.get()) is not None:
            in_flight.append((batch, _Forward(model, batch)))
            del batch  # its clients' data must not outlive the answer while the thread waits
            while in_flight and (len(in_flight) >= model.forward.max_in_flight or self._inbox.empty()):
                busy_until = self._finish(*in_flight.popleft(), busy_until)
        while in_flight:
            busy_until = self._finish(*in_flight.popleft(), busy_until)

    def _finish(self, batch: AnyBatch, forward: "_Forward", busy_until: float) -> float:
        """Tell what came of a forward; answers when it was done, see `_Forward.finish`."""
        outcome = forward.finish(busy_until)
        self._tell(self._on_finished, batch, outcome)
        return outcome.started_at + outcome.forward_s

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            assert self._loop is not None  # noqa: S101 - set by start, which starts this thread
            self._loop.call_soon_threadsafe(callback, *args)


class _Forward:
    """One forward, from its launch on; an error of either half is kept for the outcome."""

    def __init__(self, model: BatchModel, batch: Batch) -> None:
        self._started_at = time.perf_counter()
        self._launched: Launched | None = None
        self._error: Exception | None = None
        try:
            sequences = batch.take_live()
            self._num_sequences = len(sequences)
            if sequences:
                self._launched = model.launch(sequences)
        except Exception as error:
            log.exception("batch_failed")
            self._error = error

    def finish(self, busy_until: float) -> Outcome:
        """Wait for the rows; what passed before `busy_until` was the time of the forward before."""
        rows = None
        try:
            if self._launched is not None:
                rows = self._launched.wait()
                if len(rows) != self._num_sequences:
                    raise InternalError(
                        f"the model gave {len(rows)} rows for {self._num_sequences} sequences; this is a bug"
                    )
        except Exception as error:
            log.exception("batch_failed")
            rows, self._error = None, error
        began_at = max(self._started_at, busy_until)
        return Outcome(rows, self._error, began_at, time.perf_counter() - began_at)
