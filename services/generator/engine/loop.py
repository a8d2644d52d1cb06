"""Turns the crank: take commands, make a plan, run it, commit the oldest plan in flight, tell the API processes.

One thread runs it and owns everything below. With `max_in_flight` 2 the next step is planned and launched while the last one
runs on the device; with 1 a step is committed before the next is planned.
"""

from collections import deque
from typing import Protocol

from services.generator.core.messages import (
    PROTOCOL_VERSION,
    Abort,
    Command,
    EngineReady,
    Hello,
    Refused,
    ResetPrefixCache,
    Shutdown,
    StepEvents,
    Submit,
    TokenEvent,
)
from services.generator.core.plan import StepPlan, StepResult
from services.generator.core.request import FinishReason
from services.generator.engine.transport import EngineTransport
from services.generator.scheduler.scheduler import Scheduler, group_by_frontend
from shared.observability.logging import get_logger

log = get_logger(__name__)


MAX_FAILURES_IN_A_ROW = 32
"""Failed steps without a good one between them, after which the fault is hardly with the requests."""

IDLE_S = 1.0
"""Seconds without work after which nobody is held up by a check of the ledgers."""


class RunningStep(Protocol):
    """A step that was launched."""

    def result(self) -> StepResult:
        """Wait for the sampled ids."""
        ...


class Runner(Protocol):
    """Executes plans in order; the production class is `runner.ModelRunner`."""

    def execute(self, plan: StepPlan) -> RunningStep:
        """Launch a step; does not wait for the device."""
        ...

    def check_device(self) -> None:
        """Raise where the device takes no work any more, as after an error that only a new process gets rid of."""
        ...


class EngineLoop:
    """The engine's only thread of control."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        transport: EngineTransport,
        ready: EngineReady,
        *,
        max_in_flight: int,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._transport = transport
        self._ready = ready
        self._max_in_flight = max_in_flight
        self._in_flight: deque[tuple[StepPlan, RunningStep]] = deque()
        self._num_failures = 0
        self._is_stopping = False

    def run(self) -> None:
        """Serve until a Shutdown command, then close the transport."""
        while not self._is_stopping:
            for frontend_id, command in self._receive():
                self._obey(frontend_id, command)
            self.step()
        while self._in_flight:
            self._commit_oldest()
        self._transport.close()

    def _receive(self) -> list[tuple[str, Command]]:
        """Commands that are there; waits for some where there is nothing to run, and checks the ledgers meanwhile."""
        if self._scheduler.has_work:
            return self._transport.receive(0)
        commands = self._transport.receive(IDLE_S)
        if not commands:
            self._scheduler.check_integrity()
            commands = self._transport.receive(None)
        return commands

    def step(self) -> None:
        """Drop what came too late, plan and launch one step if there is something to run, then commit what is due."""
        if shed := self._scheduler.shed():
            self._publish(group_by_frontend(shed))
        plan = self._scheduler.schedule()
        if plan is not None:
            self._launch(plan)
        if self._in_flight and (plan is None or len(self._in_flight) >= self._max_in_flight):
            self._commit_oldest()

    def _launch(self, plan: StepPlan) -> None:
        try:
            self._in_flight.append((plan, self._runner.execute(plan)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the requests that are not at fault
            self._recover(error)

    def _commit_oldest(self) -> None:
        plan, running = self._in_flight.popleft()
        try:
            result = running.result()
        except Exception as error:  # noqa: BLE001 - the same: a device reports late
            self._recover(error)
            return
        self._num_failures = 0
        self._publish(group_by_frontend(self._scheduler.commit(plan, result)))

    def _recover(self, error: Exception) -> None:
        """A step failed: whose fault it is, the scheduler finds out, unless it is the device's."""
        self._runner.check_device()
        self._num_failures += 1
        if self._num_failures > MAX_FAILURES_IN_A_ROW:
            raise error
        log.error("step_failed", num_failures=self._num_failures, exc_info=error)
        self._in_flight.clear()
        self._publish(group_by_frontend(self._scheduler.recover()))

    def _publish(self, events: dict[str, list[TokenEvent]]) -> None:
        stats = self._scheduler.stats()
        for frontend_id, tokens in events.items():
            self._transport.send(frontend_id, StepEvents(tokens, stats))

    def _obey(self, frontend_id: str, command: Command) -> None:
        match command:
            case Hello():
                self._greet(frontend_id, command)
            case Submit():
                reason = self._scheduler.submit(command.request)
                if reason is not None:
                    self._end(frontend_id, command.request.request_id, reason)
            case Abort():
                if self._scheduler.abort((frontend_id, command.request_id)):
                    self._end(frontend_id, command.request_id, FinishReason.ABORT)
            case ResetPrefixCache():
                self._scheduler.reset_prefix_cache()
            case Shutdown():
                self._is_stopping = True

    def _greet(self, frontend_id: str, hello: Hello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            self._transport.send(frontend_id, Refused(f"the engine speaks protocol version {PROTOCOL_VERSION}"))
            return
        self._transport.send(frontend_id, self._ready)

    def _end(self, frontend_id: str, request_id: int, reason: FinishReason) -> None:
        self._publish({frontend_id: [TokenEvent(request_id, [], reason)]})
