"""A step that fails costs nobody but the request that is at fault, and a device that always fails ends the engine."""

import random

import pytest

from services.generator.core.request import FinishReason
from services.generator.engine import loop
from services.generator.engine.loop import MAX_FAILURES_IN_A_ROW
from tests.fakes.fake_runner import FakeRunner
from tests.fakes.recorder import record
from tests.generator.test_scheduler import VOCAB, Engine

POISON = VOCAB + 1


@pytest.fixture(autouse=True)
def log(monkeypatch):
    return record(monkeypatch, loop)


class BrokenStepError(Exception):
    """What a device would raise."""


class BadResult:
    """A step whose failure shows only when its result is wanted."""

    def result(self):
        raise BrokenStepError


class FailingRunner(FakeRunner):
    """Fails at every step that computes a POISON token, and at those whose number is in `bad_steps`; with several, it is broken."""

    def __init__(self, *args, is_late=False, bad_steps=()):
        super().__init__(*args)
        self.is_late = is_late
        self.bad_steps = set(bad_steps)
        self.is_broken = len(self.bad_steps) > 1
        self.num_launched = 0

    def check_device(self):
        if self.is_broken:
            raise BrokenStepError

    def execute(self, plan):
        self.num_launched += 1
        if POISON not in plan.token_ids and self.num_launched not in self.bad_steps:
            return super().execute(plan)
        if self.is_late:
            return None
        raise BrokenStepError

    def sample(self, step, masks):
        return BadResult() if step is None else super().sample(step, masks)


def make_engine(max_in_flight, **failing):
    engine = Engine(num_blocks=40, max_in_flight=max_in_flight, budget=24)
    engine.runner = FailingRunner(40, 4, 8, VOCAB, **failing)
    engine.loop._runner = engine.runner
    return engine


def prompt(rng):
    return [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))]


@pytest.mark.parametrize("seed", range(40))
def test_only_the_requests_at_fault_fail(seed):
    rng = random.Random(seed)
    engine = make_engine(1 + seed % 2, is_late=rng.random() < 0.5)
    poisoned = set()
    for _ in range(14):
        tokens = prompt(rng)
        if rng.random() < 0.4:
            tokens.insert(rng.randrange(len(tokens) + 1), POISON)
            poisoned.add(len(engine.requests))
        engine.submit(tokens, rng.randint(1, 20))
        if rng.random() < 0.6:
            engine.step()
    engine.drain()
    for request_id, ends in engine.ends.items():
        if request_id in poisoned:
            assert (ends, engine.outputs[request_id]) == ([FinishReason.FAILED], [])
        else:
            assert (ends, engine.outputs[request_id]) == ([FinishReason.LENGTH], engine.expected(request_id))
    assert engine.scheduler.stats().num_used_blocks == 0


@pytest.mark.parametrize("seed", range(40))
def test_a_step_that_fails_once_costs_nobody_anything(seed):
    rng = random.Random(seed)
    engine = make_engine(1 + seed % 2, is_late=rng.random() < 0.5, bad_steps=[rng.randint(2, 8)])
    for _ in range(10):
        engine.submit(prompt(rng), rng.randint(10, 20))
    engine.drain()
    assert {tuple(ends) for ends in engine.ends.values()} == {(FinishReason.LENGTH,)}
    assert engine.outputs == {request_id: engine.expected(request_id) for request_id in engine.outputs}


def test_a_request_that_fails_alone_leaves_the_engine_serving():
    engine = make_engine(2)
    bad = engine.submit([POISON], 3)
    engine.drain()
    good = engine.submit([1, 2], 3)
    engine.drain()
    assert engine.ends == {bad: [FinishReason.FAILED], good: [FinishReason.LENGTH]}


def test_what_a_failed_step_may_have_written_is_not_found_in_the_prefix_cache():
    engine = make_engine(1, bad_steps=[2])
    shared = list(range(20))
    engine.submit(shared, 2)
    engine.drain()
    hits = engine.scheduler.stats().num_prefix_hit_tokens
    engine.submit([*shared, 1], 2)
    engine.drain()
    assert engine.scheduler.stats().num_prefix_hit_tokens == hits


@pytest.mark.parametrize("is_late", [False, True])
def test_a_device_that_always_fails_ends_the_engine(is_late):
    engine = make_engine(2, is_late=is_late, bad_steps=range(1000))
    for _ in range(6):
        engine.submit([1, 2, 3], 4)
    with pytest.raises(BrokenStepError):
        engine.drain()
    assert engine.runner.num_launched <= 2


def test_requests_that_all_fail_on_a_good_device_end_the_engine_in_the_end():
    engine = make_engine(1, bad_steps=range(1000))
    engine.runner.is_broken = False
    for _ in range(2 * MAX_FAILURES_IN_A_ROW):
        engine.submit([1, 2, 3], 4)
    with pytest.raises(BrokenStepError):
        engine.drain()
    assert engine.runner.num_launched == MAX_FAILURES_IN_A_ROW + 1
