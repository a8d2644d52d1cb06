"""The async side of one text encoder: its start, its readiness, its name, and the way from texts to rows of numbers.

Made by the `app.py` of the embedder and the reranker; their routes call `encode`. Reaches the model only
through the MicroBatcher and must not import torch.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from fastapi import APIRouter, FastAPI

from shared.batching.metrics import BatchMetrics
from shared.batching.micro_batcher import BatcherSpec, MicroBatcher
from shared.batching.model_thread import BatchModel, Rows
from shared.contracts.models import ModelEntry, Task
from shared.errors import ModelNotFoundError, OverloadedError
from shared.http.app import Readiness
from shared.http.lifecycle import Lifecycle
from shared.http.model_list import model_list_router
from shared.settings.encoder import EncoderSettings
from shared.text.preparer import Prepared

NUM_PREPARE_THREADS = 2

Result = TypeVar("Result")


class Preparer(Protocol):
    """What a service's `prepare` makes sequences with; each service has its own."""

    @property
    def max_tokens(self) -> int:
        """Longest sequence, special tokens included."""
        ...


AnyPreparer = TypeVar("AnyPreparer", bound=Preparer)
PreparerCo = TypeVar("PreparerCo", bound=Preparer, covariant=True)


class Encoded(NamedTuple):
    """Rows in the order of the prepared sequences, how many tokens went through the model for them, and what was cut."""

    rows: Rows
    num_tokens: int
    cut: tuple[int, ...]


class EncoderModel(BatchModel, Protocol[PreparerCo]):
    """A loaded model: the forward belongs to its thread, the preparer may be used by any."""

    @property
    def preparer(self) -> PreparerCo:
        """Tokenizer and limits."""
        ...


class EncoderHandle(Generic[AnyPreparer]):
    """Serves one model under one name.

    Args:
        load: makes the model; called on the model thread, so that the port opens at once.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        task: Task,
        load: Callable[[], EncoderModel[AnyPreparer]],
        metrics: BatchMetrics,
        lifecycle: Lifecycle,
    ) -> None:
        self.name = settings.model_name
        self._task = task
        self._metrics = metrics
        self._max_requests = settings.max_concurrent_requests
        self._num_requests = 0
        self._created = int(time.time())
        self._pool = ThreadPoolExecutor(NUM_PREPARE_THREADS, thread_name_prefix=f"{task}-prepare")
        spec = BatcherSpec(
            max_rows=settings.max_num_seqs,
            max_padding_share=settings.max_padding_share,
            max_queue_tokens=settings.max_queue_tokens,
            hold_s=settings.hold_ms / 1000,
        )
        self._batcher: MicroBatcher[EncoderModel[AnyPreparer]] = MicroBatcher(
            f"{task}-model", load, spec, on_batch=metrics.on_batch, on_dead=lifecycle.fail
        )
        metrics.queued_rows.set_function(lambda: self._batcher.num_waiting_rows)
        metrics.queued_tokens.set_function(lambda: self._batcher.num_waiting_tokens)
        metrics.requests_inside.set_function(lambda: self._num_requests)

    def readiness(self) -> Readiness:
        """The state of the only part, the model."""
        state = self._batcher.state
        return Readiness(ready=state == "ready", parts={"model": state})

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """Load in the background while the application runs; end the threads with it."""
        self._batcher.start()
        try:
            yield
        finally:
            await self._batcher.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model; naming none is fine.

        Raises:
            ModelNotFoundError: `name` is not what is served here.
        """
        if name is not None and name != self.name:
            raise ModelNotFoundError(f"The model {name!r} is not served here; {self.name!r} is", param="model")

    @property
    def preparer(self) -> AnyPreparer:
        """Of the loaded model.

        Raises:
            NotReadyError, EngineDeadError: there is no model (yet).
        """
        return self._batcher.model.preparer

    async def encode(self, prepare: Callable[[AnyPreparer], Prepared[Any]]) -> Encoded:
        """Run `prepare` off the event loop, then its sequences through the model.

        Raises:
            NotReadyError, EngineDeadError: there is no model (yet).
            OverloadedError: too many requests are inside already.
            ServiceError: what `prepare` or the model raised.
        """
        preparer = self.preparer
        if self._num_requests >= self._max_requests:
            raise OverloadedError(f"{self._num_requests} requests are being served, the most allowed", retry_after_s=1)
        self._num_requests += 1
        try:
            started_at = time.perf_counter()
            prepared = await self.off_loop(lambda: prepare(preparer))
            num_tokens = sum(map(len, prepared.sequences))
            self._metrics.on_prepared(num_tokens, time.perf_counter() - started_at)
            return Encoded(await self._batcher.encode(prepared.sequences), num_tokens, prepared.cut)
        finally:
            self._num_requests -= 1

    async def off_loop(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which would hold up the other requests, on one of the preparing threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def models_router(self) -> APIRouter:
        """The paths below `/v1/models`, with the one model."""
        return model_list_router(lambda: [self._entry()])

    def _entry(self) -> ModelEntry:
        max_tokens = self.preparer.max_tokens
        return ModelEntry(id=self.name, created=self._created, task=self._task, max_model_len=max_tokens)
