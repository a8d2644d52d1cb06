"""The scheduler under random arrivals, aborts, shortages and chunk sizes: right tokens, one end each, nothing lost."""

import random
from concurrent.futures import Executor, Future

import pytest
from llguidance import LLMatcher

from services.generator.core.block_keys import BlockKeys
from services.generator.core.grammar import grammar_threads
from services.generator.core.messages import EngineReady, StepEvents, Submit
from services.generator.core.request import FinishReason, Request, SamplingParams
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.engine.loop import EngineLoop
from services.generator.engine.transport import InMemoryTransport
from services.generator.scheduler.deadlines import unix_ms
from services.generator.scheduler.grammars import GrammarManager
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from services.generator.scheduler.scheduler import Scheduler
from tests.fakes.fake_runner import FakeRunner, embedded, solo_output
from tests.fakes.toy_grammar import END, NUM_TOKENS, ToyGrammar, toy_tokenizer

VOCAB = NUM_TOKENS
THREADS = grammar_threads(1)
TOKENIZER = toy_tokenizer()


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
        threads=THREADS,
        images=None,
    ):
        self.transport = InMemoryTransport(self._on_event)
        limits = SchedulerLimits(max_num_seqs, budget, max_len, VOCAB, images)
        spec = KVCacheSpec(num_blocks, block_size)
        self.scheduler = Scheduler(
            limits,
            KVCacheManager(spec, BlockKeys(b"w", "float32", block_size) if cache else None),
            GrammarManager(TOKENIZER, VOCAB, VOCAB, threads),
            adapters,
            max_adapter_wait_ms=5_000,
            clock=clock,
        )
        num_image_rows = 0 if images is None else images.num_cached_rows
        self.runner = FakeRunner(num_blocks, block_size, max_num_seqs, VOCAB, num_image_rows=num_image_rows)
        ready = EngineReady(max_len, 4, num_blocks, block_size)
        self.loop = EngineLoop(self.scheduler, self.runner, self.transport, ready, max_in_flight=max_in_flight)
        self.outputs: dict[int, list[int]] = {}
        self.ends: dict[int, list[FinishReason]] = {}
        self.requests: dict[int, Request] = {}
        self.grammars: dict[int, ToyGrammar | str | None] = {}

    def submit(
        self, prompt, max_tokens, stop_ids=frozenset(), grammar=None, *, deadline_ms=None, adapter=None, images=()
    ):
        """`grammar` is a ToyGrammar, or the text of one that nobody has to follow."""
        request_id = len(self.requests)
        self.grammars[request_id] = grammar
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            stop_token_ids=frozenset(stop_ids) | (frozenset() if grammar is None else {END}),
            grammar=grammar.text if isinstance(grammar, ToyGrammar) else grammar,
        )
        self.requests[request_id] = request = Request(
            "f", request_id, prompt, sampling, deadline_ms=deadline_ms, adapter=adapter, images=images
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
        grammar = self.grammars.get(request_id)
        allowed = grammar.allowed if isinstance(grammar, ToyGrammar) else None
        prompt = embedded(request.prompt_token_ids, request.images)
        return solo_output(prompt, params.max_tokens, params.stop_token_ids, VOCAB, allowed)

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
    share_of_grammars = rng.choice([0, 0.3, 1])
    aborted = set()
    for _ in range(rng.randint(1, 25)):
        for _ in range(rng.choice([0, 1, 1, 4])):
            length = rng.randint(1, max_len - 1)
            num_shared = rng.choice([0, length, rng.randint(0, length)])
            prompt = shared[:num_shared] + [rng.randrange(VOCAB) for _ in range(length - num_shared)]
            stop_ids = rng.sample(range(VOCAB), rng.choice([0, 0, 10]))
            grammar = ToyGrammar(rng.randint(0, 12), rng.randint(0, 4)) if rng.random() < share_of_grammars else None
            engine.submit(prompt, rng.randint(1, max_len - length), stop_ids, grammar)
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
    ids = [engine.submit([n] * 8, 30, grammar=ToyGrammar(25, 4) if n % 2 else None) for n in range(4)]
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
    engine.transport.put("f", Submit([engine.requests[0]]))
    for frontend_id, command in engine.transport.receive(0):
        engine.loop._obey(frontend_id, command)
    engine.drain()
    assert engine.outputs[0] == engine.expected(0)


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_steps_with_grammars_are_launched_ahead_too(max_in_flight):
    engine = Engine(max_in_flight=max_in_flight)
    grammar = ToyGrammar(20, 0)
    engine.submit([1, 2], 30, grammar=grammar)
    engine.drain()
    assert engine.outputs[0] == engine.expected(0)
    assert len(engine.outputs[0]) == 21  # the end token is the last one
    assert engine.ends[0] == [FinishReason.STOP]
    # All but the first are launched while the one before is not committed; the last of them was for nothing.
    assert engine.runner.num_ahead == (0 if max_in_flight == 1 else engine.runner.num_steps - 1)


def test_max_tokens_cuts_a_grammar_with_reason_length():
    engine = Engine()
    engine.submit([1, 2], 5, grammar=ToyGrammar(20, 0))
    engine.drain()
    assert (engine.outputs[0], engine.ends[0]) == (engine.expected(0), [FinishReason.LENGTH])


def test_a_bad_grammar_ends_its_request_alone_with_an_error():
    engine = Engine()
    engine.submit([1, 2], 9)
    engine.submit([3], 9, grammar=LLMatcher.grammar_from_regex("(A"))
    engine.drain()
    assert (engine.outputs[0], engine.ends[0]) == (engine.expected(0), [FinishReason.LENGTH])
    assert (engine.outputs[1], engine.ends[1]) == ([], [FinishReason.ERROR])


def test_a_grammar_that_becomes_too_complex_ends_its_request_alone_with_an_error():
    engine = Engine()
    engine.submit([1, 2], 9)
    engine.submit([3], 9, grammar=LLMatcher.grammar_from_regex("[B-D]{3}A{1000000000}"))
    engine.drain()
    assert (engine.outputs[0], engine.ends[0]) == (engine.expected(0), [FinishReason.LENGTH])
    assert 0 < len(engine.outputs[1]) <= 4
    assert engine.ends[1] == [FinishReason.ERROR]


class HeldBack(Executor):
    """Runs nothing until `release`."""

    def __init__(self):
        self._work = []

    def submit(self, function, /, *args):
        self._work.append((future := Future(), function, args))
        return future

    def release(self):
        for future, function, args in self._work:
            future.set_result(function(*args))


def test_others_run_while_a_grammar_is_compiled_and_an_abort_needs_no_result():
    threads = HeldBack()
    engine = Engine(threads=threads)
    held, left, other = (
        engine.submit([n], 5, grammar=g) for n, g in ((1, ToyGrammar(3, 0)), (2, ToyGrammar(4, 0)), (3, None))
    )
    while not engine.ends[other]:
        engine.step()
    assert engine.scheduler.stats().num_waiting == 2
    engine.step()
    engine.abort(left)
    engine.step()
    assert engine.outputs[held] == []
    threads.release()
    engine.drain()
    assert engine.outputs[held] == engine.expected(held)
    assert (engine.outputs[other], engine.outputs[left]) == (engine.expected(other), [])
