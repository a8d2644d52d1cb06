"""Turns the crank: take commands, make a plan, run it, commit the oldest plan in flight, tell the API processes.

One thread runs it and owns everything below. With `max_in_flight` 2 the next step is planned and launched while the last one
runs on the device; with 1 a step is committed before the next is planned. A step with grammars is launched as early as any, from
the token that is still on the device; only its sampling waits for the step before, and the masks are made while it runs.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

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
from services.generator.core.plan import IntArray, StepPlan, StepResult
from services.generator.core.request import FinishReason
from services.generator.engine.transport import EngineTransport
from services.generator.scheduler.scheduler import Scheduler, group_by_frontend
from shared.observability.logging import get_logger

log = get_logger(__name__)
PREPARING_S = 0.005
"""How long commands may wait while all that there is to run is still being prepared."""

Launched = TypeVar("Launched")


class RunningStep(Protocol):
    """A step whose tokens were chosen, or will be."""

    def result(self) -> StepResult:
        """Wait for the sampled ids."""
        ...


class Runner(Protocol[Launched]):
    """Executes plans in order; the production class is `runner.ModelRunner`. Neither call waits for the device."""

    def execute(self, plan: StepPlan) -> Launched:
        """Launch a step up to its logits."""
        ...

    def sample(self, step: Launched, masks: IntArray | None) -> RunningStep:
        """Choose its tokens, among those of `masks` [N, ceil(V / 32)] if there are any; before the next step is launched."""
        ...


class EngineLoop(Generic[Launched]):
    """The engine's only thread of control."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner[Launched],
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
        self._is_stopping = False

    def run(self) -> None:
        """Serve until a Shutdown command."""
        while not self._is_stopping:
            is_idle = not self._scheduler.has_work
            for frontend_id, command in self._transport.receive(None if is_idle else 0):
                self._obey(frontend_id, command)
            self.step()
        while self._in_flight:
            self._commit_oldest()

    def step(self) -> None:
        """Plan and launch one step if there is something to run, then commit what is due."""
        plan = self._scheduler.schedule()
        if plan is not None:
            self._launch(plan)
        elif not self._in_flight:
            self._scheduler.wait(PREPARING_S)
        if self._in_flight and (plan is None or len(self._in_flight) >= self._max_in_flight):
            self._commit_oldest()

    def _launch(self, plan: StepPlan) -> None:
        launched = self._runner.execute(plan)
        if plan.features.has_grammars:
            while self._in_flight:  # the masks depend on the tokens of every step before
                self._commit_oldest()
        self._in_flight.append((plan, self._runner.sample(launched, self._scheduler.masks(plan))))

    def _commit_oldest(self) -> None:
        plan, running = self._in_flight.popleft()
        events = self._scheduler.commit(plan, running.result())
        self._publish(group_by_frontend(events))

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
