"""Deadlines: what has not been started in time is never computed and ends with a 504; what runs is let to finish."""

import concurrent.futures
import random
import time

import httpx
import pytest

from services.generator.core.request import FinishReason
from tests.fakes.service_process import ServiceProcess
from tests.generator.test_api import CHAT, COMPLETION, Api
from tests.generator.test_scheduler import Engine


class FakeClock:
    """Stands still unless told."""

    def __init__(self):
        self.now_ms = 1000

    def __call__(self):
        return self.now_ms


@pytest.fixture
def clock():
    return FakeClock()


# --- the scheduler ---


def test_a_request_that_waits_past_its_deadline_is_dropped_and_never_computed(clock):
    engine = Engine(max_num_seqs=1, clock=clock)
    runs = engine.submit([1, 2, 3], 30)
    late = engine.submit([4, 5], 5, deadline_ms=1500)
    waits = engine.submit([6], 5, deadline_ms=3000)
    for now_ms, expected in [(1000, []), (1499, []), (1500, [FinishReason.DEADLINE])]:
        clock.now_ms = now_ms
        engine.step()
        assert engine.ends[late] == expected
    assert (engine.ends[runs], engine.ends[waits]) == ([], [])
    engine.drain()
    assert engine.outputs[late] == []
    assert engine.outputs[runs] == engine.expected(runs)
    assert engine.outputs[waits] == engine.expected(waits)
    assert engine.runner.num_steps == 30 + 5


def test_a_request_that_comes_too_late_takes_no_step(clock):
    engine = Engine(clock=clock)
    late = engine.submit([1], 5, deadline_ms=0)
    engine.drain()
    assert (engine.ends[late], engine.runner.num_steps) == ([FinishReason.DEADLINE], 0)


def test_what_was_started_is_finished_through_preemption_too(clock):
    engine = Engine(num_blocks=10, block_size=4, max_num_seqs=4, max_len=40, clock=clock)
    ids = [engine.submit([n] * 8, 30, deadline_ms=2000) for n in range(4)]
    engine.step()
    clock.now_ms = 5000
    engine.drain()
    assert engine.scheduler.stats().num_preemptions > 0
    assert all(engine.outputs[i] == engine.expected(i) for i in ids)


@pytest.mark.parametrize("seed", range(40))
def test_random_deadlines_give_each_request_one_end_and_a_whole_answer_or_none(clock, seed):
    rng = random.Random(seed)
    engine = Engine(num_blocks=20, max_num_seqs=2, max_len=40, max_in_flight=rng.choice([1, 2, 3]), clock=clock)
    for _ in range(20):
        for _ in range(rng.choice([0, 1, 3])):
            deadline_ms = rng.choice([None, clock.now_ms + rng.randint(-5, 200)])
            engine.submit(
                [rng.randrange(50) for _ in range(rng.randint(1, 12))], rng.randint(1, 20), deadline_ms=deadline_ms
            )
        clock.now_ms += rng.randint(0, 40)
        engine.step()
    engine.drain()
    for request_id, request in engine.requests.items():
        if engine.ends[request_id] == [FinishReason.DEADLINE]:
            assert request.deadline_ms <= clock.now_ms
            assert engine.outputs[request_id] == []
        else:
            assert engine.ends[request_id] == [FinishReason.LENGTH]
            assert engine.outputs[request_id] == engine.expected(request_id)
    stats = engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)


# --- the API ---


def in_ms(left_ms):
    return {"X-Request-Deadline": str(int(time.time() * 1000) + left_ms)}


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
@pytest.mark.parametrize("stream", [False, True])
class TestApi:
    def test_a_deadline_that_is_past_starts_nothing(self, tiny_llama, path, body, stream):
        api = Api(tiny_llama)
        response = api.post(path, {**body, "stream": stream}, headers={"X-Request-Deadline": "1000"})
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert response.headers["x-should-retry"] == "false"
        assert api.engine.submitted == []

    def test_a_deadline_that_is_no_time_is_a_400_that_names_the_header(self, tiny_llama, path, body, stream):
        response = Api(tiny_llama).post(path, {**body, "stream": stream}, headers={"X-Request-Deadline": "soon"})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Request-Deadline")

    def test_it_reaches_the_engine_with_every_choice(self, tiny_llama, path, body, stream):
        api = Api(tiny_llama)
        headers = in_ms(60_000)
        assert api.post(path, {**body, "stream": stream, "n": 2}, headers=headers).status_code == 200
        assert api.engine.deadlines == [int(headers["X-Request-Deadline"])] * 2

    def test_what_the_engine_dropped_is_told_and_the_other_choices_are_given_up(self, tiny_llama, path, body, stream):
        api = Api(tiny_llama)
        scripts = [[[104]] * 40 + [FinishReason.LENGTH], [FinishReason.DEADLINE]]
        api.script = lambda prompt, sampling: scripts[len(api.engine.submitted) - 1]
        if stream:
            assert api.events(path, {**body, "n": 2})[-1]["error"]["code"] == "deadline_exceeded"
        else:
            response = api.post(path, {**body, "n": 2})
            assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert api.engine.aborted == [0]


@pytest.mark.e2e
def test_a_queued_request_is_dropped_by_the_real_engine_while_another_runs(long_llama, tmp_path):
    args = ["--model", str(long_llama), "--num-threads", "1", "--max-num-seqs", "1"]
    long = {"prompt": [5, 6, 7], "max_tokens": 8000, "temperature": 0, "stream": True}
    with (
        ServiceProcess("generator", tmp_path / "log", *args) as service,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        service.wait_ready()
        url = f"{service.url}/v1/completions"
        with httpx.stream("POST", url, json=long, timeout=60) as response:
            next(lines := response.iter_lines())
            late = pool.submit(httpx.post, url, json={**long, "stream": False}, headers=in_ms(300), timeout=60)
            assert late.result().status_code == 504
            assert late.result().json()["error"]["code"] == "deadline_exceeded"
            next(line for line in lines if line)  # the first one still runs
            assert service.metric("trivium_generator_waiting_sequences") == 0
