"""How often a dead engine is started again: bounded in a row, however long each takes to load."""

import asyncio
import time

import pytest

from services.generator.engine import supervisor
from services.generator.engine.handle import EngineHandle, EngineState
from services.generator.engine.supervisor import STABLE_S, EngineSupervisor, pause_before
from services.generator.settings import GeneratorSettings
from tests.fakes.recorder import record


class ScriptedSupervisor(EngineSupervisor):
    """Engines that end at once; `served_s` says how long each was ready before, None for never."""

    def __init__(self, handle, max_engine_restarts, served_s):
        super().__init__(GeneratorSettings(model="m", max_engine_restarts=max_engine_restarts), handle)
        self.handle = handle
        self.served_s = iter(served_s)
        self.num_engines = 0

    async def _run_engine(self):
        self.num_engines += 1
        served_s = next(self.served_s)
        self.handle.ready_at = None if served_s is None else time.monotonic() - served_s
        return "it ended"


def run(monkeypatch, max_engine_restarts, served_s):
    monkeypatch.setattr(supervisor, "pause_before", lambda num_failures: 0.0)
    record(monkeypatch, supervisor)
    made = ScriptedSupervisor(EngineHandle(1), max_engine_restarts, served_s)

    async def go():
        end = await made.run()
        await made.stop()
        return end

    return made, asyncio.run(go())


def test_engines_that_die_soon_after_they_are_ready_are_given_up(monkeypatch):
    made, end = run(monkeypatch, 3, [1.0] * 10)
    assert (made.num_engines, made.num_restarts, end.was_ready) == (4, 3, True)
    assert made.handle.state is EngineState.DEAD


def test_an_engine_that_served_long_starts_the_count_anew(monkeypatch):
    made, _ = run(monkeypatch, 2, [1.0, 1.0, STABLE_S + 1, 1.0, 1.0, 1.0])
    assert made.num_engines == 5


def test_an_engine_that_was_never_ready_is_not_tried_again(monkeypatch):
    made, end = run(monkeypatch, 5, [None, 1.0])
    assert (made.num_engines, end.was_ready) == (1, False)


def test_one_that_does_not_come_up_again_counts_too(monkeypatch):
    made, end = run(monkeypatch, 2, [1.0, None, None, None])
    assert (made.num_engines, end.was_ready) == (3, True)


@pytest.mark.parametrize(("num_failures", "pause_s"), [(1, 1), (2, 2), (5, 16), (50, 30)])
def test_pauses_grow_up_to_a_limit(num_failures, pause_s):
    assert pause_before(num_failures) == pause_s
