"""Adapters that come, go, change and are evicted under running requests, over a disk and a device that only pretend."""

import itertools
import random

import pytest

from services.generator.core.adapter_view import AdapterView
from services.generator.core.adapters import AdapterDescription, BankContract
from services.generator.core.messages import AdapterAnswer, AdapterChanges, LoadAdapter, PinAdapter, UnloadAdapter
from services.generator.core.request import FinishReason
from services.generator.engine import adapter_snapshots
from services.generator.engine.adapter_catalog import AdapterCatalog
from services.generator.engine.adapter_lifecycle import AdapterLifecycle
from services.generator.engine.adapter_loader import AdapterPlace
from services.generator.engine.adapter_scanner import FoundAdapter, Scan
from services.generator.engine.adapter_snapshots import AdapterSnapshots
from services.generator.scheduler.adapter_registry import AdapterRegistry
from services.generator.scheduler.eviction import EvictionOrder
from tests.fakes.fake_adapters import NUM_BYTES, AdapterRunner, FakeLoader, NoCopies, content_of
from tests.fakes.fake_runner import solo_output
from tests.fakes.recorder import record
from tests.generator.test_adapter_registry import Clock
from tests.generator.test_scheduler import VOCAB, Engine

PREFIX = list(range(16))
"""What many prompts begin with, so that KV of another content would be found if it was known by anything but content."""


def found(name):
    place = AdapterPlace(name, None)
    return FoundAdapter(place, AdapterDescription(name, name, 4, 1, ("q_proj",), NUM_BYTES))


class LiveEngine(Engine):
    """An engine whose adapters live: `disk` holds their contents by name, `answers` what became of commands by call id."""

    def __init__(self, num_slots, num_places, disk, order=EvictionOrder.LRU, **sizes):
        self.registry, self.clock, self.disk = AdapterRegistry(num_slots, num_places, order), Clock(), disk
        self.answers, self.digests, self.view = {}, {}, AdapterView()
        super().__init__(adapters=self.registry, clock=self.clock, **sizes)
        self.tensors, self.loader = {}, FakeLoader(disk)
        snapshots = AdapterSnapshots(self.registry, BankContract(8, num_slots, num_places, (), 0, 0), NoCopies())
        self.catalog = AdapterCatalog(self.registry, self.tensors, snapshots.descriptions)
        self.lifecycle = AdapterLifecycle(snapshots, self.catalog, self.loader, None, base_name="base", max_wait_s=5)
        self.runner = AdapterRunner(
            self.tensors, self.runner._kv.size // 4, 4, self.runner._block_table.shape[0], VOCAB
        )
        self.loop._runner, self.loop._adapters = self.runner, self.lifecycle
        self.loop._frontend_ids.add("f")
        self.num_places, self.calls = num_places, itertools.count()
        self.scan(disk)

    def scan(self, names):
        self.catalog.enter_scan(Scan({name: found(name) for name in names}))

    def call(self, command, *args):
        call_id = next(self.calls)
        self.lifecycle.obey("f", command(call_id, *args))
        return call_id

    def step(self):
        super().step()
        self.loop._tend_adapters()
        self.scheduler.check_integrity()
        assert len(self.tensors) <= self.num_places
        if not self.lifecycle.snapshots.has_changes:
            self.check_view()

    def check_view(self):
        """What API processes were told is what is so."""
        truth = self.lifecycle.snapshots.everything()
        assert self.view.versions() == sorted(truth.changed, key=lambda state: (state.name, state.version_id))
        assert self.view.counts == truth.counts

    def deliver(self):
        self.loader.deliver()
        self.loop._tend_adapters()

    def settle(self):
        for _ in range(5000):
            if not self.scheduler.has_work and not self.loader.num_open:
                return
            self.step()
            self.loader.deliver()
            self.clock.now_ms += 200
        raise AssertionError("the engine makes no progress")

    def expected(self, request_id):
        request = self.requests[request_id]
        content = None if request.adapter is None else content_of(self.digests[request_id])
        return solo_output(
            request.prompt_token_ids,
            request.sampling.max_tokens,
            frozenset(),
            VOCAB,
            adapter=content,
            kv_id=0 if content is None else content + 1,
        )

    def _on_event(self, frontend_id, event):
        if isinstance(event, AdapterChanges):
            self.view.take(event)
        elif isinstance(event, AdapterAnswer):
            self.answers[event.call_id] = event
        else:
            for token_event in event.tokens:
                if token_event.adapter_digest is not None:
                    assert token_event.request_id not in self.digests, "a request was told twice"
                    self.digests[token_event.request_id] = token_event.adapter_digest
            super()._on_event(frontend_id, event)


def act(rng, engine, names, contents):
    """One thing at random that a client or an operator may do."""
    name, kind = rng.choice(names), rng.randrange(12)
    match kind:
        case 0:
            engine.disk[f"{name}-new"] = next(contents)
            engine.call(LoadAdapter, name, f"{name}-new", rng.random() < 0.2, rng.random() < 0.8)
        case 1:
            engine.call(UnloadAdapter, name, rng.random() < 0.5)
        case 2:
            engine.call(PinAdapter, name, rng.random() < 0.5)
        case 3:
            engine.disk[name] = next(contents)
        case 4:
            engine.scan(rng.sample(names, rng.randint(1, len(names))))
        case 5 if engine.requests:
            engine.abort(rng.randrange(len(engine.requests)))
        case 6:
            engine.disk.pop(name, None)
        case _:
            tokens = [*PREFIX[: rng.randrange(17)], *(rng.randrange(VOCAB) for _ in range(rng.randint(1, 20)))]
            engine.submit(tokens, rng.randint(1, 12), adapter=rng.choice([None, name, name, name]))


@pytest.mark.parametrize("seed", range(60))
def test_random_lives_leak_nothing_and_mix_nothing_up(seed):
    rng, contents = random.Random(seed), itertools.count(1)
    names = [f"a{number}" for number in range(rng.randint(2, 9))]
    num_slots = rng.randint(1, 3)
    engine = LiveEngine(
        num_slots,
        rng.randint(num_slots, 5),
        {name: next(contents) for name in names},
        rng.choice(list(EvictionOrder)),
        num_blocks=rng.randint(30, 60),
        max_num_seqs=rng.randint(1, 6),
        max_in_flight=rng.randint(1, 3),
        budget=rng.choice([16, 64]),
    )
    for _ in range(60):
        act(rng, engine, names, contents)
        if rng.random() < 0.3:
            engine.deliver()
        if rng.random() < 0.7:
            engine.step()
            engine.clock.now_ms += rng.choice([1, 100, 3_000])
    engine.settle()
    engine.step()
    for request_id, ends in engine.ends.items():
        assert len(ends) == 1
        if ends == [FinishReason.LENGTH]:
            assert engine.outputs[request_id] == engine.expected(request_id)
    check_at_rest(engine)


def check_at_rest(engine):
    """Nothing is used any more, and what API processes know is what is so."""
    assert len(engine.answers) == next(engine.calls), "a call was not answered"
    versions = engine.registry.versions()
    assert all(version.num_requests == version.num_leases == version.num_running == 0 for version in versions)
    assert all(version.is_current for version in versions), "what has no name and no requests is still there"
    assert set(engine.tensors) == {version.version_id for version in versions if version.is_in_host}
    assert engine.registry.host.num_bytes == sum(tensors.num_bytes for tensors in engine.tensors.values())
    assert set(engine.catalog._places) == set(versions)
    assert set(engine.lifecycle.snapshots.descriptions) == {version.version_id for version in versions}
    engine.check_view()
    assert {name: state.digest for name, state in engine.view.current.items()} == {v.name: v.digest for v in versions}


def test_a_request_waits_while_its_adapter_is_read_and_others_go_on():
    engine = LiveEngine(2, 2, {"a": 1})
    waiting, base = engine.submit([1, 2], 3, adapter="a"), engine.submit([1], 4)
    for _ in range(8):
        engine.step()
    assert (engine.ends[waiting], engine.ends[base]) == ([], [FinishReason.LENGTH])
    engine.deliver()
    engine.settle()
    assert engine.outputs[waiting] == engine.expected(waiting)


def test_a_folder_that_cannot_be_read_ends_those_who_wait_for_it_alone():
    engine = LiveEngine(2, 2, {"a": 1, "b": 2})
    del engine.disk["a"]
    bad, good = engine.submit([1], 3, adapter="a"), engine.submit([1], 3, adapter="b")
    engine.settle()
    assert (engine.ends[bad], engine.ends[good]) == ([FinishReason.BAD_ADAPTER], [FinishReason.LENGTH])


def test_requests_finish_on_the_version_that_was_there_when_they_came():
    engine = LiveEngine(1, 2, {"a": 1})
    running = engine.submit([1], 60, adapter="a")
    engine.step()
    engine.deliver()
    engine.step()
    queued = engine.submit([2], 4, adapter="a")
    engine.disk["b"] = 2
    call = engine.call(LoadAdapter, "a", "b")
    engine.deliver()
    new = engine.submit([3], 4, adapter="a")
    assert engine.answers[call].outcome == "loaded"
    assert [state.is_current for state in engine.view.versions()] == [False, True]
    engine.settle()
    contents = [content_of(engine.digests[request]) for request in (running, queued, new)]
    assert contents == [1, 1, 2]
    check_at_rest(engine)


def test_the_same_content_again_changes_nothing():
    engine = LiveEngine(1, 1, {"a": 1})
    engine.submit([1], 1, adapter="a")
    engine.settle()
    before = engine.registry.find("a")
    call = engine.call(LoadAdapter, "a", "a")
    engine.deliver()
    assert engine.answers[call].outcome == "unchanged"
    assert engine.registry.find("a") is before


def test_an_adapter_in_use_is_unloaded_only_with_drain():
    engine = LiveEngine(1, 2, {"a": 1})
    engine.submit([1], 20, adapter="a")
    engine.step()
    engine.deliver()
    refused, drained = engine.call(UnloadAdapter, "a"), engine.call(UnloadAdapter, "a", True)
    late = engine.submit([1], 1, adapter="a")
    engine.step()
    assert engine.answers[refused].error == "adapter_conflict"
    assert engine.answers[drained].outcome == "draining"
    assert engine.ends[late] == [FinishReason.NO_ADAPTER]
    engine.settle()
    assert engine.tensors == {}
    assert engine.registry.find("a") is not None, "its folder is still below the root, so it can be named again"
    check_at_rest(engine)


def test_pins_keep_their_places_and_leave_a_slot_for_the_others():
    engine = LiveEngine(2, 2, {name: number for number, name in enumerate("abcd")})
    pins = [engine.call(PinAdapter, name, True) for name in "ab"]
    engine.deliver()
    assert [engine.answers[pin].error for pin in pins] == [None, "adapter_conflict"]
    refused = engine.call(PinAdapter, "c", True)
    assert not engine.lifecycle.is_reading, "a pin that is refused reads nothing"
    engine.deliver()
    assert engine.answers[refused].error == "adapter_conflict"
    for name in "abcdb":
        engine.submit([1], 2, adapter=name)
        engine.settle()
    assert engine.registry.find("a").slot is not None


def test_a_full_host_tier_refuses_a_load_and_lets_those_in_turn_that_waited_long_enough():
    engine = LiveEngine(1, 1, {"a": 1, "b": 2}, max_len=1000, num_blocks=400)
    long = engine.submit([1], 100, adapter="a")
    engine.step()
    engine.deliver()
    other = engine.submit([1], 2, adapter="b")
    call = engine.call(LoadAdapter, "c", "b")
    engine.step()
    engine.deliver()
    assert engine.answers[call].error == "overloaded"
    assert engine.outputs[other] == []
    engine.settle()
    assert engine.outputs[long] == engine.expected(long)
    assert engine.outputs[other] == engine.expected(other)


def test_what_is_merely_waited_for_leaves_host_memory_for_what_was_wanted_too_long():
    engine = LiveEngine(1, 1, {"a": 1, "b": 2}, max_num_seqs=1, max_len=1000, num_blocks=400)
    engine.submit([1], 300)
    first, second = (engine.submit([2], 2, adapter=name) for name in "ab")
    engine.step()
    engine.deliver()
    engine.step()
    engine.deliver()
    assert [engine.registry.find(name).is_in_host for name in "ab"] == [True, False]
    engine.clock.now_ms += 5_000
    engine.step()
    engine.deliver()
    assert [engine.registry.find(name).is_in_host for name in "ab"] == [False, True]
    engine.settle()
    assert [engine.outputs[request] for request in (first, second)] == [engine.expected(first), engine.expected(second)]


def test_activations_are_logged_and_slots_that_churn_for_long_are_a_warning(monkeypatch):
    lines = record(monkeypatch, adapter_snapshots)
    monkeypatch.setattr(adapter_snapshots, "CHURN_STEPS", 3)
    engine = LiveEngine(1, 2, {"a": 1, "b": 2})
    for name in "abab":
        engine.submit([1], 1, adapter=name)
        engine.settle()
    activated = [(line["name"], line["slot"]) for line in lines if line["event"] == "adapter_activated"]
    assert activated == [(name, 0) for name in "abab"]
    assert [line["num_slots"] for line in lines if line["event"] == "adapter_slots_churn"] == [1]


@pytest.mark.parametrize(("order", "kept"), [(EvictionOrder.LRU, {"b", "c"}), (EvictionOrder.LFU, {"a", "c"})])
def test_eviction_takes_what_was_used_longest_ago_or_least(order, kept):
    engine = LiveEngine(2, 2, {"a": 1, "b": 2, "c": 3}, order)
    for name in ("a", "a", "a", "b", "c"):
        engine.submit([1], 1, adapter=name)
        engine.settle()
    assert {version.name for version in engine.registry.versions() if version.is_in_host} == kept


def test_memory_is_freed_only_when_the_last_plan_that_reads_it_was_committed():
    engine = LiveEngine(1, 1, {"a": 1}, max_in_flight=3)
    request = engine.submit([1], 20, adapter="a")
    engine.step()
    engine.deliver()
    engine.step()
    assert engine.scheduler.has_work
    engine.abort(request)
    call = engine.call(UnloadAdapter, "a")
    engine.loop._tend_adapters()
    assert engine.answers[call].outcome == "draining"
    assert len(engine.tensors) == 1
    engine.step()  # nothing is left to plan, so the plan in flight is committed, which looks at what it read
    assert engine.tensors == {}
    check_at_rest(engine)


def test_a_folder_that_cannot_be_read_does_no_harm_once_its_name_was_loaded_from_elsewhere():
    engine = LiveEngine(1, 2, {"a": 1})
    del engine.disk["a"]
    request = engine.submit([1], 3, adapter="a")
    engine.step()
    engine.disk["b"] = 2
    engine.call(LoadAdapter, "a", "b")
    engine.loader.jobs.reverse()
    engine.deliver()
    engine.settle()
    assert (engine.ends[request], content_of(engine.digests[request])) == ([FinishReason.LENGTH], 2)
