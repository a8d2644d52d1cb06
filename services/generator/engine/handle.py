"""The API process's side of the engine: submit, stream events, abort; knows whether the engine lives.

Lives on the event loop of the API process and is the only owner of the map from request id to the stream that its client reads.
Must not import torch.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
import zmq
import zmq.asyncio

from services.generator.core.adapter_view import AdapterView
from services.generator.core.adapters import AdapterState
from services.generator.core.messages import (
    Abort,
    AdapterAnswer,
    AdapterChanges,
    Command,
    EngineReady,
    EngineStats,
    Event,
    Hello,
    Refused,
    ResetPrefixCache,
    Shutdown,
    StepEvents,
    Submit,
    TokenEvent,
)
from services.generator.core.request import Choice, Request, RequestOptions
from services.generator.engine.adapter_calls import AdapterCalls, MakeCommand
from services.generator.engine.token_stream import TokenStream
from services.generator.engine.wire import encode_command
from shared.errors import (
    EngineDeadError,
    ForbiddenError,
    InternalError,
    NotReadyError,
    OverloadedError,
)
from shared.observability.logging import get_logger

log = get_logger(__name__)

BATCHED_STEPS = 32
"""Of a request whose answer nobody reads before its end: often enough that little is left to do then. With a reader woken for each
token, and text made of each by itself, 256 rows took the event loop 7 ms a step on a CPU of two cores; so it is 3."""


class EngineState(StrEnum):
    """As `/ready` names it."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    DEAD = "dead"


class EngineHandle:
    """Async façade of the engine process, and of the next one when that dies.

    Args:
        max_queued: requests that may wait in the engine beyond those that it runs.
    """

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self.max_requests = max_queued
        """Requests in the engine at once, queued ones included; one more is refused. Known once the engine is ready."""
        self.max_image_rows = 0
        """Rows that the different images of one request may have together; 0 where the model takes none. Known likewise."""
        self.num_graphs = 0
        """CUDA graphs of the engine. Known likewise."""
        self._frontend_id = uuid.uuid4().hex
        self._ids = itertools.count()
        self._streams: dict[int, TokenStream] = {}
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._decoder = msgspec.msgpack.Decoder(Event)
        self.state = EngineState.LOADING
        self.is_ready = asyncio.Event()
        self.ready_at: float | None = None
        self.stats = EngineStats()
        self.adapter_view = AdapterView()
        self._adapter_calls = AdapterCalls(self._send)

    @property
    def adapters(self) -> Mapping[str, AdapterState]:
        """What requests may name, by name."""
        return self.adapter_view.current

    @property
    def num_requests(self) -> int:
        """Requests that the engine has not ended."""
        return len(self._streams)

    async def run(self, address: str) -> None:
        """Connect to the engine that is bound to `address`, or will be, and hand out its events until cancelled."""
        self.state = EngineState.LOADING
        self.is_ready.clear()
        self.ready_at = None
        self.adapter_view = AdapterView()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, self._frontend_id.encode())
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)
        try:
            self._send(Hello())
            while True:
                self._take(self._decoder.decode(await self._socket.recv()))
        finally:
            self._socket.close(linger=200)
            self._socket = None
            self._context.term()

    def lose_engine(self, state: EngineState) -> None:
        """The engine process is gone: everyone who waits gets an error now."""
        self.state = state
        self.stats = EngineStats()
        for stream in self._streams.values():
            stream.lose()
        self._streams.clear()
        self._adapter_calls.lose()

    def reset_prefix_cache(self) -> None:
        """Forget the content of all KV blocks; running requests keep theirs.

        Raises:
            NotReadyError, EngineDeadError: there is no engine to tell.
        """
        self.check_open()
        self._send(ResetPrefixCache())

    async def change_adapter(self, make: MakeCommand) -> AdapterAnswer:
        """Send the command that `make` makes of a call's id, and wait for the answer.

        Raises:
            ServiceError: the engine refuses it, or there is none, or it takes no adapters.
        """
        self.check_open()
        if self.adapter_view.bank is None:
            raise ForbiddenError("The service was started without --lora-root, so it takes no adapters")
        return await self._adapter_calls.call(make)

    def shutdown(self) -> None:
        """Ask the engine to stop."""
        if self.state is EngineState.READY:
            self._send(Shutdown())

    def submit(self, choices: Sequence[Choice], options: RequestOptions) -> list[TokenStream]:
        """Start all choices of an API request, or none; the events of each come from its stream, which the caller must close.

        Raises:
            NotReadyError: the engine is still loading.
            EngineDeadError: the engine is gone.
            OverloadedError: too many requests are in the engine.
        """
        self.check_open()
        if len(self._streams) + len(choices) > self.max_requests:
            raise OverloadedError(
                f"{len(self._streams)} requests are running or queued, near the limit", retry_after_s=1
            )
        shared = (options.cache_salt, options.deadline_ms, options.adapter, options.images)
        requests = [
            Request(self._frontend_id, next(self._ids), prompt, sampling, *shared) for prompt, sampling in choices
        ]
        self._send(Submit(requests))
        batch = BATCHED_STEPS if options.is_read_whole else 1
        streams = {request.request_id: TokenStream(self.close, request.request_id, batch) for request in requests}
        self._streams.update(streams)
        return list(streams.values())

    def close(self, request_id: int) -> None:
        """Forget a request, and abort it in the engine unless it has ended."""
        if self._streams.pop(request_id, None) is not None and self.state is EngineState.READY:
            self._send(Abort(request_id))

    def check_open(self) -> None:
        """Raise NotReadyError or EngineDeadError where the engine takes no requests."""
        if self.state is EngineState.LOADING:
            raise NotReadyError("The model is loading", retry_after_s=2)
        if self.state is EngineState.RESTARTING:
            raise NotReadyError("The engine stopped and is about to start again", retry_after_s=5)
        if self.state is EngineState.DEAD:
            raise EngineDeadError("The engine is not running")

    def _send(self, command: Command) -> None:
        if self._socket is not None:
            frames = encode_command(command)
            self._socket.send_multipart(frames, copy=len(frames) == 1)  # no limit on the queue is set: this never waits

    def _deliver(self, event: TokenEvent) -> None:
        stream = self._streams.get(event.request_id)
        if stream is None:
            return  # its client left, the abort is on its way
        stream.put(event)
        if event.finish_reason is not None:
            del self._streams[event.request_id]

    def _take(self, event: Event) -> None:
        match event:
            case EngineReady():
                self.state = EngineState.READY
                self.max_requests = event.max_num_seqs + self._max_queued
                self.max_image_rows = event.max_image_rows
                self.num_graphs = event.num_graphs
                self.is_ready.set()
                self.ready_at = time.monotonic()
                self.adapter_view.bank = event.bank
                self._adapter_calls.restore()
                log.info("engine_ready", num_blocks=event.num_blocks, block_size=event.block_size)
            case StepEvents():
                self.stats = event.stats
                for token_event in event.tokens:
                    self._deliver(token_event)
            case AdapterChanges():
                self.adapter_view.take(event)
            case AdapterAnswer():
                self._adapter_calls.take(event)
            case Refused():
                raise InternalError(f"the engine refused this process: {event.reason}")
