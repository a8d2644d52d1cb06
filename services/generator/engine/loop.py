"""Turns the crank: take commands, make a plan, run it, commit the oldest plan in flight, tell the API processes.

One thread runs it and owns everything below. With `max_in_flight` 2 the next step is planned and launched while the last one
runs on the device; with 1 a step is committed before the next is planned. A step with grammars is launched as early as any, from
the token that is still on the device; only its sampling waits for the step before, and the masks are made while it runs.
"""

from collections import deque
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from services.generator.core.launch import Launch
from services.generator.core.messages import (
    PROTOCOL_VERSION,
    Abort,
    Command,
    EngineReady,
    Hello,
    LoadAdapter,
    PinAdapter,
    Refused,
    ResetPrefixCache,
    Shutdown,
    StepEvents,
    Submit,
    TokenEvent,
    UnloadAdapter,
)
from services.generator.core.plan import IntArray, StepPlan, StepResult
from services.generator.core.request import FinishReason
from services.generator.engine.adapter_lifecycle import AdapterLifecycle
from services.generator.engine.transport import EngineTransport
from services.generator.scheduler.scheduler import Scheduler, group_by_frontend
from shared.observability.logging import get_logger

log = get_logger(__name__)

Launched = TypeVar("Launched")

PREPARING_S = 0.005
"""How long commands may wait while all that there is to run is still being prepared."""

MAX_FAILURES_IN_A_ROW = 32
"""Failed steps without a good one between them, after which the fault is hardly with the requests."""

IDLE_S = 1.0
"""Seconds without work after which nobody is held up by a check of the ledgers."""


class RunningStep(Protocol):
    """A step whose tokens were chosen, or will be."""

    def result(self) -> StepResult:
        """Wait for the sampled ids."""
        ...


class Runner(Protocol[Launched]):
    """Executes plans in order; the production class is `runner.ModelRunner`. Neither call waits for the device."""

    @property
    def launches(self) -> Mapping[Launch, int]:
        """Steps so far, by how they were launched."""
        ...

    def execute(self, plan: StepPlan) -> Launched:
        """Launch a step up to its logits."""
        ...

    def sample(self, step: Launched, masks: IntArray | None) -> RunningStep:
        """Choose its tokens, among those of `masks` [N, ceil(V / 32)] if there are any; before the next step is launched."""
        ...

    def check_device(self) -> None:
        """Raise where the device takes no work any more, as after an error that only a new process gets rid of."""
        ...


class EngineLoop(Generic[Launched]):
    """The engine's only thread of control.

    Args:
        adapters: None where there is no bank.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner[Launched],
        transport: EngineTransport,
        ready: EngineReady,
        *,
        max_in_flight: int,
        adapters: AdapterLifecycle | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._transport = transport
        self._ready = ready
        self._max_in_flight = max_in_flight
        self._adapters = adapters
        self._frontend_ids: set[str] = set()
        self._in_flight: deque[tuple[StepPlan, RunningStep]] = deque()
        self._num_failures = 0
        self._is_stopping = False

    def run(self) -> None:
        """Serve until a Shutdown command, then close the transport."""
        if self._adapters is not None:
            self._adapters.start(self._transport.wake)
        while not self._is_stopping:
            for frontend_id, command in self._receive():
                self._obey(frontend_id, command)
            self.step()
            self._tend_adapters()
        while self._in_flight:
            self._commit_oldest()
        if self._adapters is not None:
            self._adapters.close()
        self._transport.close()

    def _receive(self) -> list[tuple[str, Command]]:
        """Commands that are there; waits for some where there is nothing to run, and checks the ledgers meanwhile."""
        if self._scheduler.has_work:
            return self._transport.receive(0)
        commands = self._transport.receive(IDLE_S)
        if not commands and not (self._adapters is not None and self._adapters.has_news):
            self._scheduler.check_integrity()
            commands = self._transport.receive(None)
        return commands

    def step(self) -> None:
        """Drop what came too late, plan and launch one step if there is something to run, then commit what is due."""
        if shed := self._scheduler.shed():
            self._publish(group_by_frontend(shed))
        plan = self._scheduler.schedule()
        if admitted := self._scheduler.admission.take_admitted():
            self._publish(group_by_frontend(admitted))
        if plan is not None:
            self._launch(plan)
        elif not self._in_flight:
            self._wait()
        if self._in_flight and (plan is None or len(self._in_flight) >= self._max_in_flight):
            self._commit_oldest()

    def _wait(self) -> None:
        """Nothing can run before something else is done, a grammar or an adapter, if there is something to run at all."""
        if self._adapters is not None and self._adapters.is_reading and self._scheduler.has_work:
            self._adapters.wait(PREPARING_S)
        else:
            self._scheduler.wait(PREPARING_S)

    def _tend_adapters(self) -> None:
        """Go on with what adapters need between two steps, and tell everyone who should know."""
        if self._adapters is None:
            return
        turn = self._adapters.turn(self._scheduler.now_ms, is_idle=not self._scheduler.has_work)
        for version, problem in turn.failed:
            self._publish(group_by_frontend(self._scheduler.admission.end_waiting(version, problem)))
        if turn.changes is not None:
            for frontend_id in self._frontend_ids:
                self._transport.send(frontend_id, turn.changes)
        for frontend_id, answer in turn.answers:
            self._transport.send(frontend_id, answer)

    def _launch(self, plan: StepPlan) -> None:
        if self._adapters is not None:
            self._adapters.snapshots.note_copies(plan.adapter_copies)
        try:
            launched = self._runner.execute(plan)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the requests that are not at fault
            self._recover(error)
            return
        if plan.features.has_grammars:
            while self._in_flight:  # the masks depend on the tokens of every step before
                if not self._commit_oldest():
                    return
        try:
            masks = self._scheduler.masks(plan)
            self._in_flight.append((plan, self._runner.sample(launched, masks)))
        except Exception as error:  # noqa: BLE001 - the same
            self._recover(error)

    def _commit_oldest(self) -> bool:
        """Record the oldest step in flight; answers False where it failed, and with it all plans in flight."""
        plan, running = self._in_flight.popleft()
        try:
            result = running.result()
        except Exception as error:  # noqa: BLE001 - the same: a device reports late
            self._recover(error)
            return False
        self._num_failures = 0
        self._publish(group_by_frontend(self._scheduler.commit(plan, result)))
        return True

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
        stats = msgspec.structs.replace(self._scheduler.stats(), num_steps=dict(self._runner.launches))
        for frontend_id, tokens in events.items():
            self._transport.send(frontend_id, StepEvents(tokens, stats))

    def _obey(self, frontend_id: str, command: Command) -> None:
        match command:
            case Hello():
                self._greet(frontend_id, command)
            case Submit():
                for request in command.requests:
                    reason = self._scheduler.submit(request)
                    if reason is not None:
                        self._end(frontend_id, request.request_id, reason)
            case Abort():
                if self._scheduler.abort((frontend_id, command.request_id)):
                    self._end(frontend_id, command.request_id, FinishReason.ABORT)
            case ResetPrefixCache():
                self._scheduler.reset_prefix_cache()
            case LoadAdapter() | UnloadAdapter() | PinAdapter() if self._adapters is not None:
                self._adapters.obey(frontend_id, command)
            case Shutdown():
                self._is_stopping = True

    def _greet(self, frontend_id: str, hello: Hello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            self._transport.send(frontend_id, Refused(f"the engine speaks protocol version {PROTOCOL_VERSION}"))
            return
        self._frontend_ids.add(frontend_id)
        if self._adapters is not None:
            self._transport.send(frontend_id, self._adapters.snapshots.everything())
        self._transport.send(frontend_id, self._ready)

    def _end(self, frontend_id: str, request_id: int, reason: FinishReason) -> None:
        self._publish({frontend_id: [TokenEvent(request_id, [], reason)]})
