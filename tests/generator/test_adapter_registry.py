"""Adapters under the scheduler: more of them than slots, preemption, aborts; each request gets its own adapter's tokens."""

import itertools
import random

import pytest

from services.generator.core.request import FinishReason
from services.generator.scheduler.adapter_registry import AdapterRegistry
from tests.fakes.fake_runner import solo_output
from tests.generator.test_scheduler import VOCAB, Engine

TURN_MS = 5_000


class Clock:
    """Time in milliseconds, moved by hand."""

    def __init__(self):
        self.now_ms = 0

    def __call__(self):
        return self.now_ms


def make_engine(num_slots, names, *, sharing=(), **sizes):
    """An engine that knows adapters `names`; those in `sharing` change no keys and values."""
    registry, clock = AdapterRegistry(num_slots), Clock()
    engine = Engine(adapters=registry, clock=clock, **sizes)
    engine.clock, engine.versions = clock, {}
    for name in names:
        kv_digest = None if name in sharing else name.encode()
        version = engine.versions[name] = registry.add(name, kv_digest)
        if kv_digest is not None:
            engine.runner.kv_ids[version.version_id] = version.version_id + 1
    return engine


def expected(engine, request_id):
    request = engine.requests[request_id]
    version = engine.versions.get(request.adapter)
    return solo_output(
        request.prompt_token_ids,
        request.sampling.max_tokens,
        frozenset(),
        VOCAB,
        adapter=None if version is None else version.version_id,
        kv_id=0 if version is None else engine.runner.kv_ids.get(version.version_id, 0),
    )


@pytest.mark.parametrize("seed", range(100))
def test_random_runs_give_each_request_its_adapters_output(seed):
    rng = random.Random(seed)
    names = [f"a{number}" for number in range(rng.randint(1, 7))]
    sizes = {"num_blocks": rng.randint(30, 60), "max_num_seqs": rng.randint(1, 8), "budget": rng.choice([16, 24, 64])}
    sharing = rng.sample(names, len(names) // 3)
    engine = make_engine(rng.randint(1, 4), names, sharing=sharing, max_in_flight=rng.randint(1, 3), **sizes)
    prefix = [rng.randrange(VOCAB) for _ in range(16)]
    for _ in range(20):
        tokens = prefix[: rng.randrange(17)] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
        engine.submit(tokens, rng.randint(1, 15), adapter=rng.choice([None, *names]))
        if rng.random() < 0.1:
            engine.abort(rng.randrange(len(engine.requests)))
        if rng.random() < 0.6:
            engine.step()
            engine.clock.now_ms += rng.choice([1, 100, 3_000])
    while engine.scheduler.has_work:
        engine.step()
        engine.clock.now_ms += 200
    for request_id, ends in engine.ends.items():
        assert len(ends) == 1
        if ends != [FinishReason.ABORT]:
            assert engine.outputs[request_id] == expected(engine, request_id)


def test_others_go_on_while_an_adapter_waits_for_a_slot():
    engine = make_engine(1, ["a", "b"])
    first = engine.submit([1], 30, adapter="a")
    engine.step()
    blocked, base, same = (engine.submit([2], 3, adapter=name) for name in ("b", None, "a"))
    for _ in range(10):
        engine.step()
    assert [len(engine.ends[request]) for request in (first, blocked, base, same)] == [0, 0, 1, 1]
    engine.drain()
    assert engine.outputs[blocked] == expected(engine, blocked)


def test_a_wait_for_a_slot_is_bounded():
    engine = make_engine(1, ["a", "b"], max_len=1000, num_blocks=400)
    first = engine.submit([1], 500, adapter="a")
    engine.step()
    blocked = engine.submit([2], 4, adapter="b")
    for _ in range(10):
        engine.step()
    assert engine.outputs[blocked] == []
    engine.clock.now_ms += 5_000
    for _ in range(10):
        engine.step()
    assert engine.ends[blocked] == [FinishReason.LENGTH]
    assert engine.ends[first] == []
    engine.drain()
    assert engine.outputs[first] == expected(engine, first)


def test_more_adapters_than_slots_take_turns_of_the_length_that_was_set():
    names = [f"a{number}" for number in range(5)]
    engine = make_engine(1, names, max_len=1000, num_blocks=400)
    requests = [engine.submit([number], 100, adapter=name) for number, name in enumerate(names)]
    changes, holder = [], None
    for _ in range(80):
        engine.step()
        now = next((name for name, version in engine.versions.items() if version.slot is not None), None)
        if now != holder:
            changes.append(engine.clock.now_ms)
            holder = now
        engine.clock.now_ms += 1_000
    assert all(engine.outputs[request] for request in requests)
    assert min(later - earlier for earlier, later in itertools.pairwise(changes)) >= TURN_MS
    engine.drain()
    assert all(engine.outputs[request] == expected(engine, request) for request in requests)


def test_the_slot_used_last_is_taken_last():
    engine = make_engine(2, ["a", "b", "c"])
    for name in ("a", "b", "a", "c"):
        engine.submit([1], 2, adapter=name)
        engine.drain()
    resident = {name for name, version in engine.versions.items() if version.slot is not None}
    assert resident == {"a", "c"}


def test_adapters_that_change_no_keys_and_values_share_prefixes_with_the_base_model():
    engine = make_engine(2, ["head", "full"], sharing=["head"])
    prompt = list(range(17))
    engine.submit(prompt, 1)
    engine.drain()
    for name, hits in (("head", 16), ("full", 16), (None, 32)):
        request = engine.submit(prompt, 1, adapter=name)
        engine.drain()
        assert engine.scheduler.stats().num_prefix_hit_tokens == hits
        assert engine.outputs[request] == expected(engine, request)


def test_a_new_version_under_an_old_name_finds_no_old_keys_and_values():
    registry = AdapterRegistry(1)
    engine = Engine(adapters=registry)
    prompt = list(range(17))
    for digest in (b"1", b"2", b"1"):
        version = registry.add("a", digest)
        engine.runner.kv_ids[version.version_id] = digest[0]
        engine.submit(prompt, 1, adapter="a")
        engine.drain()
    assert engine.scheduler.stats().num_prefix_hit_tokens == 16  # the third has the weights of the first


def test_an_unknown_adapter_ends_the_request():
    engine = make_engine(1, ["a"])
    request = engine.submit([1], 2, adapter="b")
    assert engine.ends[request] == [FinishReason.NO_ADAPTER]
