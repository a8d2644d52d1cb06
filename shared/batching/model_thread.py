"""The one named thread that owns a model: loads it, then runs one batch after another.

Owned by MicroBatcher. Batches come in over one queue; each finished batch goes out as one call on the event loop.
It must not decide what goes into a batch, nor touch what is the event loop's but through `call_soon_threadsafe`.
"""

import asyncio
import contextlib
import queue
import threading
import time
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


class BatchModel(Protocol):
    """What the thread can own: something that turns a batch of sequences into one row of numbers for each."""

    @property
    def max_batch_tokens(self) -> int:
        """Tokens one forward may hold, padding included."""
        ...

    def run(self, batch: Sequence[Any]) -> Rows:
        """[len(batch), N] float32, in the order of `batch`, which is not empty."""
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
            while (batch := self._inbox.get()) is not None:
                self._tell(self._on_finished, batch, _run(model, batch))
                del batch  # its clients' data must not outlive the answer while the thread waits
        except StartError as error:
            self._tell(self._on_dead, str(error))
        except BaseException as error:
            log.exception("model_thread_died")
            self._tell(self._on_dead, f"the model thread died of {type(error).__name__}")

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            assert self._loop is not None  # noqa: S101 - set by start, which starts this thread
            self._loop.call_soon_threadsafe(callback, *args)


def _run(model: BatchModel, batch: Batch) -> Outcome:
    started_at = time.perf_counter()
    rows, error = None, None
    try:
        sequences = batch.take_live()
        if sequences:
            rows = model.run(sequences)
            if len(rows) != len(sequences):
                raise InternalError(f"the model gave {len(rows)} rows for {len(sequences)} sequences; this is a bug")
    except Exception as caught:
        log.exception("batch_failed")
        error = caught
    return Outcome(rows, error, started_at, time.perf_counter() - started_at)
