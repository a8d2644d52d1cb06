"""Gathers the sequences of many clients into shared forwards of one model, and hands every client its own rows back.

Called by the routes of the embedder and the reranker through `encode`; lives on the event loop and owns a `ModelThread`.
It decides what runs when and must not know what a row means. No torch here, and no lock: one queue in, one call out.

A batch that fails is run again request by request, so that only the one at fault fails.

A request's way: 1 it waits, bounded in tokens → 2 its sequences are taken with others of like length (`WaitingLine`) →
3 the batch goes to the thread, one ahead of those that run where enough waits → 4 its rows go back into the request's
order → 5 it is answered, once.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from shared.batching.length_window import BatchLimits
from shared.batching.model_thread import BatchModel, ModelThread, Outcome, Rows, Tokens
from shared.batching.waiting_line import PendingRequest, WaitingItem, WaitingLine
from shared.errors import EngineDeadError, InternalError, NotReadyError, OverloadedError, ServiceError

Model = TypeVar("Model", bound=BatchModel)

_BUSY_HOLDS = 5
"""For how many hold times after its last batch the model still counts as busy."""


@dataclass(frozen=True)
class BatcherSpec:
    """How a MicroBatcher gathers; the budget in tokens is the model's own.

    Attributes:
        max_rows, max_padding_share: see `BatchLimits`.
        max_queue_tokens: tokens that may wait; past it requests are refused, but one of any size fits an empty queue.
        hold_s: longest time a request waits for company while the model is free; none waits on an idle model.
    """

    max_rows: int
    max_padding_share: float
    max_queue_tokens: int
    hold_s: float


@dataclass(frozen=True)
class BatchReport:
    """One forward, for the metrics; `queue_s` has one value for each request that took part."""

    num_rows: int
    num_tokens: int
    num_padding_tokens: int
    queue_s: list[float]
    forward_s: float


class _Batch:
    """Sequences that run together; `live` is filled on the model thread, before the forward."""

    def __init__(self, items: list[WaitingItem]) -> None:
        self.items = items
        self.live: list[WaitingItem] = []

    def take_live(self) -> list[Tokens]:
        self.live = [item for item in self.items if not item.request.answer.done()]
        return [item.tokens for item in self.live]

    def requests(self) -> list[PendingRequest]:
        return list(dict.fromkeys(item.request for item in self.items))


class MicroBatcher(Generic[Model]):
    """The async side of one model.

    Args:
        name: name of the model thread.
        load: makes the model; called on that thread.
        on_batch: told of every forward that ran.
        on_dead: told why, when there will never be another answer; every waiting request has failed by then.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Model],
        spec: BatcherSpec,
        *,
        on_batch: Callable[[BatchReport], None],
        on_dead: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._on_batch = on_batch
        self._on_dead = on_dead
        self._thread: ModelThread[Model, _Batch] = ModelThread(
            name, load, on_loaded=self._loaded, on_finished=self._finished, on_dead=self._died
        )
        self._model: Model | None = None
        self._is_dead = False
        self._line = WaitingLine()
        self._running: list[_Batch] = []  # handed to the thread, oldest first
        self._again: deque[_Batch] = deque()  # parts of failed batches, a request in each
        self._timer: asyncio.TimerHandle | None = None
        self._last_finish = 0.0
        self._last_num_requests = 0
        self._tokens_per_s = 0.0

    @property
    def state(self) -> Literal["loading", "ready", "failed"]:
        """Whether `encode` will answer now, later or never."""
        if self._is_dead:
            return "failed"
        return "loading" if self._model is None else "ready"

    @property
    def model(self) -> Model:
        """The loaded model.

        Raises:
            NotReadyError: it is still being loaded.
            EngineDeadError: there is none any more.
        """
        if self._is_dead:
            raise EngineDeadError("The model is not running any more")
        if self._model is None:
            raise NotReadyError("The model is still being loaded", retry_after_s=1)
        return self._model

    @property
    def num_waiting_rows(self) -> int:
        """Sequences that wait for a forward."""
        return len(self._line)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that wait for a forward."""
        return self._line.num_tokens

    def start(self) -> None:
        """Begin to load the model."""
        self._thread.start()

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Fail what still waits and end the thread; wait for a running forward at most `timeout_s`."""
        self._fail_all(NotReadyError("The service is shutting down", retry_after_s=1))
        await self._thread.stop(timeout_s)

    async def encode(self, sequences: Sequence[Tokens]) -> Rows:
        """A row for each of `sequences`, none of them empty, in their order; cancelling it drops what has not run.

        Raises:
            NotReadyError, EngineDeadError: see `model`.
            OverloadedError: too much is waiting; nothing was started.
            ServiceError: the forward failed.
        """
        self._admit(sum(map(len, sequences)))
        answer: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()
        request = PendingRequest(answer, time.perf_counter(), sequences, num_left=len(sequences))
        self._line.add(request)
        self._pump()
        try:
            return await answer
        finally:
            self._line.drop(request)

    def _admit(self, num_tokens: int) -> None:
        _ = self.model  # raises if there is none
        num_waiting = self._line.num_tokens
        if num_waiting > 0 and num_waiting + num_tokens > self._spec.max_queue_tokens:
            raise OverloadedError(
                f"The queue is full: {num_waiting} of {self._spec.max_queue_tokens} tokens are waiting",
                retry_after_s=min(60.0, num_waiting / self._tokens_per_s) if self._tokens_per_s else 1,
            )

    def _pump(self) -> None:
        """Hand over what may run now: a batch for a free model, and one ahead for a busy one if it can be full."""
        if self._model is None:
            return
        forward = self._model.forward
        while self._again and len(self._running) <= forward.max_in_flight:
            self._submit(self._again.popleft())
        while len(self._line) > 0 and len(self._running) <= forward.max_in_flight:
            is_enough = self._line.num_tokens >= forward.max_tokens
            if not is_enough and (self._running or self._hold()):
                return
            padding = self._spec.max_padding_share if forward.has_padding else None
            self._submit(_Batch(self._line.take(BatchLimits(forward.max_tokens, self._spec.max_rows, padding))))

    def _submit(self, batch: _Batch) -> None:
        self._running.append(batch)
        self._thread.submit(batch)

    def _hold(self) -> bool:
        """Whether company is likely to come soon: the last batch, just before, had more clients than are waiting."""
        now = time.perf_counter()
        hold_until = self._line.oldest.submitted_at + self._spec.hold_s
        is_idle = now > self._last_finish + _BUSY_HOLDS * self._spec.hold_s
        if is_idle or self._line.num_requests >= self._last_num_requests or now >= hold_until:
            return False
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(hold_until - now, self._hold_is_over)
        return True

    def _hold_is_over(self) -> None:
        self._timer = None
        self._pump()

    def _loaded(self, model: Model) -> None:
        self._model = model

    def _finished(self, batch: _Batch, outcome: Outcome) -> None:
        self._running.remove(batch)
        self._last_finish = time.perf_counter()
        self._last_num_requests = len(batch.requests())
        if outcome.error is not None:
            self._find_culprit(batch, outcome.error)
        elif outcome.rows is not None:
            self._hand_back(batch, outcome.rows)
            self._report(batch, outcome)
        self._pump()

    def _hand_back(self, batch: _Batch, rows: Rows) -> None:
        """Give each request its rows; one with a row that is no number gets an error, the others do not notice."""
        are_numbers: np.ndarray[Any, np.dtype[np.bool_]] = np.all(np.isfinite(rows), axis=1)
        for item, row, is_number in zip(batch.live, rows, are_numbers, strict=True):
            if is_number:
                item.request.put(item.index, row)
            else:
                item.request.fail(InternalError("The model's answer is no number; a wider --dtype may help"))
                self._line.drop(item.request)

    def _find_culprit(self, batch: _Batch, error: Exception) -> None:
        """Fail the only request of `batch`; where there are several, run each alone."""
        parts: dict[PendingRequest, list[WaitingItem]] = {}
        for item in batch.items:
            parts.setdefault(item.request, []).append(item)
        if len(parts) == 1:
            self._fail(batch, error)
        else:
            self._again.extend(_Batch(items) for items in parts.values())

    def _fail(self, batch: _Batch, error: Exception) -> None:
        told = error if isinstance(error, ServiceError) else InternalError("The model failed on this request's batch")
        for request in batch.requests():
            request.fail(told)
            self._line.drop(request)

    def _report(self, batch: _Batch, outcome: Outcome) -> None:
        num_tokens = sum(item.length for item in batch.live)
        num_padded = num_tokens
        if self.model.forward.has_padding:
            num_padded = len(batch.live) * max(item.length for item in batch.live)
        rate = num_tokens / max(outcome.forward_s, 1e-6)
        self._tokens_per_s = 0.8 * self._tokens_per_s + 0.2 * rate if self._tokens_per_s else rate
        queue_s = [outcome.started_at - request.submitted_at for request in batch.requests()]
        self._on_batch(BatchReport(len(batch.live), num_tokens, num_padded - num_tokens, queue_s, outcome.forward_s))

    def _died(self, reason: str) -> None:
        self._is_dead = True
        self._fail_all(EngineDeadError("The model stopped while it worked on the request"))
        self._on_dead(reason)

    def _fail_all(self, error: ServiceError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for batch in (*self._running, *self._again):
            self._fail(batch, error)
        for request in self._line.requests:
            request.fail(error)
            self._line.drop(request)
