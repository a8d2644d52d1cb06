"""Adapter commands of one API process: each waits for its answer, and what they made of an engine is made of the next one too.

Owned by `EngineHandle`, on its event loop. Must not import torch.
"""

import asyncio
import itertools
from collections.abc import Callable

from services.generator.core.messages import AdapterAnswer, AdapterCommand, AdapterOutcome
from shared.errors import (
    AdapterConflictError,
    AdapterNotFoundError,
    EngineDeadError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    ServiceError,
)
from shared.observability.logging import get_logger

log = get_logger(__name__)

MakeCommand = Callable[[int], AdapterCommand]
"""A command for the id of a call."""

_ERRORS: dict[str, type[ServiceError]] = {
    error.code.value: error
    for error in (InvalidRequestError, AdapterNotFoundError, AdapterConflictError, OverloadedError)
}
"""What a command may be refused with."""


class AdapterCalls:
    """Those that wait, and those that have to be said again.

    Args:
        send: hands a command to the engine.
    """

    def __init__(self, send: Callable[[AdapterCommand], None]) -> None:
        self._send = send
        self._ids = itertools.count()
        self._open: dict[int, asyncio.Future[AdapterAnswer]] = {}
        self._loads: dict[str, MakeCommand] = {}
        self._pins: dict[str, MakeCommand] = {}
        self._pins_after: dict[int, MakeCommand] = {}  # what follows a load that is said again, by that call's id

    async def call(self, make: MakeCommand) -> AdapterAnswer:
        """Send a command and wait for its answer.

        Raises:
            ServiceError: the engine refuses it, or stopped before it answered.
        """
        call_id = next(self._ids)
        self._open[call_id] = asyncio.get_running_loop().create_future()
        command = make(call_id)
        try:
            self._send(command)
            answer = await self._open[call_id]
        finally:
            del self._open[call_id]
        if answer.error is not None:
            raise _ERRORS.get(answer.error, InternalError)(answer.problem, param=answer.param)
        self._remember(command.name, make, answer.outcome)
        return answer

    def take(self, answer: AdapterAnswer) -> None:
        """The engine answered."""
        call = self._open.get(answer.call_id)
        if call is not None and not call.done():
            call.set_result(answer)
        elif answer.error is not None:
            log.warning("adapter_not_restored", reason=answer.problem)
        elif (pin := self._pins_after.pop(answer.call_id, None)) is not None:
            self._send(pin(next(self._ids)))

    def lose(self) -> None:
        """The engine is gone, and with it whoever waits."""
        for call in self._open.values():
            if not call.done():
                call.set_exception(EngineDeadError("The engine stopped before it answered"))

    def restore(self) -> None:
        """Another engine has started, which knows only what its settings say."""
        pins = dict(self._pins)
        self._pins_after.clear()
        for name, load in self._loads.items():
            call_id = next(self._ids)
            self._send(load(call_id))
            if name in pins:
                self._pins_after[call_id] = pins.pop(name)
        for pin in pins.values():
            self._send(pin(next(self._ids)))

    def _remember(self, name: str, make: MakeCommand, outcome: AdapterOutcome | None) -> None:
        match outcome:
            case AdapterOutcome.LOADED | AdapterOutcome.UNCHANGED:
                self._loads[name] = make
            case AdapterOutcome.PINNED:
                self._pins[name] = make
            case AdapterOutcome.UNPINNED:
                self._pins.pop(name, None)
            case AdapterOutcome.UNLOADED | AdapterOutcome.DRAINING:
                self._loads.pop(name, None)
                self._pins.pop(name, None)
