"""The scheduler under random arrivals, aborts, shortages and chunk sizes: right tokens, one end each, nothing lost."""

import random

import pytest

from services.generator.core.block_keys import BlockKeys
from services.generator.core.messages import EngineReady, StepEvents, Submit
from services.generator.core.request import FinishReason, Request, SamplingParams
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.engine.loop import EngineLoop
from services.generator.engine.transport import InMemoryTransport
from services.generator.scheduler.deadlines import unix_ms
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from services.generator.scheduler.scheduler import Scheduler
from tests.fakes.fake_runner import FakeRunner, solo_output

VOCAB = 50


class Engine:
    """A loop over the fake device, driven step by step; `outputs` and `ends` are what a client would see."""

    def __init__(
        self,
        *,
        num_blocks=64,
        block_size=4,
        max_num_seqs=8,
        budget=64,
        max_len=200,
        max_in_flight=2,
        cache=True,
        adapters=None,
        clock=unix_ms,
    ):
        self.transport = InMemoryTransport(self._on_event)
        limits = SchedulerLimits(max_num_seqs, budget, max_len, VOCAB)
        spec = KVCacheSpec(num_blocks, block_size)
        self.scheduler = Scheduler(
            limits,
            KVCacheManager(spec, BlockKeys(b"w", "float32", block_size) if cache else None),
            adapters,
            clock=clock,
        )
        self.runner = FakeRunner(num_blocks, block_size, max_num_seqs, VOCAB)
        ready = EngineReady(max_len, num_blocks, block_size)
        self.loop = EngineLoop(self.scheduler, self.runner, self.transport, ready, max_in_flight=max_in_flight)
        self.outputs: dict[int, list[int]] = {}
        self.ends: dict[int, list[FinishReason]] = {}
        self.requests: dict[int, Request] = {}

    def submit(self, prompt, max_tokens, stop_ids=frozenset(), deadline_ms=None, adapter=None):
        request_id = len(self.requests)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, stop_token_ids=frozenset(stop_ids))
        self.requests[request_id] = request = Request(
            "f", request_id, prompt, sampling, deadline_ms=deadline_ms, adapter=adapter
        )
        self.outputs[request_id], self.ends[request_id] = [], []
        reason = self.scheduler.submit(request)
        if reason is not None:
            self.ends[request_id].append(reason)
        return request_id

    def abort(self, request_id):
        if self.scheduler.abort(("f", request_id)):
            self.ends[request_id].append(FinishReason.ABORT)

    def step(self):
        self.loop.step()
        self.scheduler.check_integrity()

    def drain(self, limit=5000):
        while self.scheduler.has_work:
            self.step()
            limit -= 1
            assert limit > 0, "the scheduler makes no progress"

    def expected(self, request_id):
        request = self.requests[request_id]
        params = request.sampling
        return solo_output(request.prompt_token_ids, params.max_tokens, params.stop_token_ids, VOCAB)

    def _on_event(self, _frontend_id, event):
        assert isinstance(event, StepEvents)
        for token_event in event.tokens:
            assert not self.ends[token_event.request_id], "an event after the end"
            self.outputs[token_event.request_id] += token_event.token_ids
            if token_event.finish_reason is not None:
                self.ends[token_event.request_id].append(token_event.finish_reason)


@pytest.mark.parametrize("seed", range(200))
def test_random_runs_give_each_request_its_solo_output_and_one_end(seed):
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4, 16])
    max_len = rng.choice([24, 60])
    least_blocks = -(-max_len // block_size)
    engine = Engine(
        num_blocks=least_blocks + rng.choice([0, 1, 5, 40]),
        block_size=block_size,
        max_num_seqs=rng.choice([1, 2, 7]),
        budget=rng.choice([1, 3, 16, 200]),
        max_len=max_len,
        max_in_flight=rng.choice([1, 2, 3]),
        cache=rng.random() < 0.8,
    )
    shared = [rng.randrange(VOCAB) for _ in range(max_len)]
    aborted = set()
    for _ in range(rng.randint(1, 25)):
        for _ in range(rng.choice([0, 1, 1, 4])):
            length = rng.randint(1, max_len - 1)
            num_shared = rng.choice([0, length, rng.randint(0, length)])
            prompt = shared[:num_shared] + [rng.randrange(VOCAB) for _ in range(length - num_shared)]
            stop_ids = rng.sample(range(VOCAB), rng.choice([0, 0, 10]))
            engine.submit(prompt, rng.randint(1, max_len - length), stop_ids)
        if engine.requests and rng.random() < 0.3:
            request_id = rng.randrange(len(engine.requests))
            engine.abort(request_id)
            aborted.add(request_id)
        if rng.random() < 0.05:
            engine.scheduler.reset_prefix_cache()
        for _ in range(rng.randint(0, 12)):
            engine.step()
    engine.drain()
    for request_id, request in engine.requests.items():
        assert len(engine.ends[request_id]) == 1
        expected = engine.expected(request_id)
        if request_id in aborted:
            assert engine.outputs[request_id] == expected[: len(engine.outputs[request_id])]
        else:
            assert engine.outputs[request_id] == expected
            stopped = expected[-1] in request.sampling.stop_token_ids
            assert engine.ends[request_id] == [FinishReason.STOP if stopped else FinishReason.LENGTH]
    stats = engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)


def test_preemption_happens_in_a_tiny_pool_and_changes_no_output():
    engine = Engine(num_blocks=10, block_size=4, max_num_seqs=4, max_len=40)
    ids = [engine.submit([n] * 8, 30) for n in range(4)]
    engine.drain()
    assert engine.scheduler.stats().num_preemptions > 0
    assert all(engine.outputs[i] == engine.expected(i) for i in ids)


def test_limits_of_a_step_are_kept():
    engine = Engine(max_num_seqs=3, budget=7, num_blocks=200)
    for n in range(9):
        engine.submit([n] * 20, 12)
    engine.drain()
    assert engine.runner.max_tokens_in_step == 7
    assert engine.runner.max_rows_in_step == 3


def test_requests_join_and_leave_between_steps():
    engine = Engine(max_in_flight=1)
    engine.submit([1, 2, 3], 10)
    for _ in range(4):
        engine.step()
    engine.submit([4, 5], 2)
    engine.step()
    assert engine.runner.max_rows_in_step == 2
    engine.drain()
    assert engine.runner.num_steps == 10  # the second request added no step of its own


def test_first_come_first_served_when_rows_are_short():
    engine = Engine(max_num_seqs=1, max_in_flight=1)
    ids = [engine.submit([n, n], 3) for n in range(4)]
    order = []
    while engine.scheduler.has_work:
        engine.step()
        order += [i for i in ids if engine.ends[i] and i not in order]
    assert order == ids


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_late_stop_wastes_at_most_one_step(max_in_flight):
    engine = Engine(max_in_flight=max_in_flight)
    engine.submit([1, 2, 3], 50, stop_ids=range(VOCAB))  # stops at its first token
    engine.drain()
    assert engine.outputs[0] == engine.expected(0)
    assert len(engine.outputs[0]) == 1
    assert engine.runner.num_steps <= max_in_flight


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 1), ([1] * 200, 1), ([1], 200)])
def test_a_request_that_can_never_run_ends_at_once(prompt, max_tokens):
    engine = Engine(max_len=200)
    engine.submit(prompt, max_tokens)
    assert engine.ends[0] == [FinishReason.ERROR]
    assert not engine.scheduler.has_work


def test_the_loop_answers_hello_submit_and_abort_over_its_transport():
    engine = Engine()
    engine.requests[0] = Request("f", 0, [1, 2], SamplingParams(max_tokens=3, temperature=0))
    engine.outputs[0], engine.ends[0] = [], []
    engine.transport.put("f", Submit(engine.requests[0]))
    for frontend_id, command in engine.transport.receive(0):
        engine.loop._obey(frontend_id, command)
    engine.drain()
    assert engine.outputs[0] == engine.expected(0)
