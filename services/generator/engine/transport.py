"""How messages cross between API processes and the engine: over ZeroMQ sockets, or in memory for tests and in-process use.

The engine loop holds one `EngineTransport`. Knows bytes and sockets, nothing of what the messages mean. Must not import torch.
"""

import queue
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq

from services.generator.core.messages import Command, Event
from services.generator.engine.wire import decode_command, encode_command

MS_PER_S = 1000


class EngineTransport(Protocol):
    """The engine's side: commands in, events out, each with the API process it belongs to."""

    def receive(self, timeout_s: float | None) -> list[tuple[str, Command]]:
        """All commands that are there; waits up to `timeout_s` (None: forever) for the first, or until woken."""
        ...

    def wake(self) -> None:
        """Let `receive` return, now or at its next call; from any thread."""
        ...

    def send(self, frontend_id: str, event: Event) -> None:
        """Hand `event` to one API process; never blocks."""
        ...

    def close(self) -> None:
        """Let go of sockets and threads."""
        ...


class ZmqTransport:
    """A ROUTER socket that API processes connect to with a DEALER socket of identity `frontend_id`.

    Args:
        address: a ZeroMQ address to bind, such as `ipc:///run/engine.sock`.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # a slow API process must not hold up the engine
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._wakes = self._context.socket(zmq.PULL)
        self._wakes.bind("inproc://wake")
        self._waker = self._context.socket(zmq.PUSH)
        self._waker.connect("inproc://wake")
        self._waker_lock = threading.Lock()  # a socket may be used by several threads, one after the other
        self._poller = zmq.Poller()
        for socket in (self._socket, self._wakes):
            self._poller.register(socket, zmq.POLLIN)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, timeout_s: float | None) -> list[tuple[str, Command]]:
        """See EngineTransport."""
        timeout_ms = None if timeout_s is None else int(timeout_s * MS_PER_S)
        commands: list[tuple[str, Command]] = []
        while ready := dict(self._poller.poll(timeout_ms)):
            if self._wakes in ready:
                self._wakes.recv()
            if self._socket in ready:
                identity, *frames = self._socket.recv_multipart()
                commands.append((identity.decode(), decode_command(frames)))
            timeout_ms = 0
        return commands

    def wake(self) -> None:
        """See EngineTransport."""
        with self._waker_lock:
            if not self._waker.closed:
                self._waker.send(b"")

    def send(self, frontend_id: str, event: Event) -> None:
        """See EngineTransport; an event for an API process that is gone is dropped by the socket."""
        self._socket.send_multipart([frontend_id.encode(), self._encoder.encode(event)])

    def close(self) -> None:
        """See EngineTransport."""
        with self._waker_lock:
            self._waker.close(linger=0)
        self._wakes.close(linger=0)
        self._socket.close(linger=500)
        self._context.term()


class InMemoryTransport:
    """The same messages within one process; they are encoded and decoded all the same, so that nothing is shared.

    Args:
        on_event: called on the engine's thread with every event.
    """

    def __init__(self, on_event: Callable[[str, Event], None]) -> None:
        self._inbox: queue.SimpleQueue[tuple[str, list[bytes]] | None] = queue.SimpleQueue()
        self._on_event = on_event

    def put(self, frontend_id: str, command: Command) -> None:
        """Send a command to the engine, from any thread."""
        self._inbox.put((frontend_id, encode_command(command)))

    def receive(self, timeout_s: float | None) -> list[tuple[str, Command]]:
        """See EngineTransport."""
        commands: list[tuple[str, Command]] = []
        try:
            while True:
                item = self._inbox.get(block=timeout_s != 0, timeout=timeout_s)
                timeout_s = 0
                if item is not None:
                    commands.append((item[0], decode_command(item[1])))
        except queue.Empty:
            return commands

    def wake(self) -> None:
        """See EngineTransport."""
        self._inbox.put(None)

    def send(self, frontend_id: str, event: Event) -> None:
        """See EngineTransport."""
        self._on_event(frontend_id, msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event))

    def close(self) -> None:
        """See EngineTransport."""
