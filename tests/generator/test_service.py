"""The generator as real processes: concurrency, disconnects, shutdown, and what the death of the engine means."""

import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import time

import httpx
import psutil
import pytest

from tests.fakes.service_process import ServiceProcess

pytestmark = pytest.mark.e2e
LONG = {"prompt": [5, 6, 7], "max_tokens": 8000, "temperature": 0, "stream": True}


@pytest.fixture(scope="module")
def service(long_llama, tmp_path_factory):
    log = tmp_path_factory.mktemp("generator") / "log"
    with start(long_llama, log) as process:
        yield process


def start(folder, log, *args):
    process = ServiceProcess("generator", log, "--model", str(folder), "--num-threads", "1", *args)
    process.wait_ready()
    return process


def complete(service, **fields):
    response = httpx.post(f"{service.url}/v1/completions", json=fields, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def eventually(condition, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def test_concurrent_requests_get_the_text_that_each_gets_alone(service):
    rng = random.Random(0)
    bodies = [
        {
            "prompt": [rng.randrange(256) for _ in range(rng.randint(1, 120))],
            "max_tokens": rng.randint(1, 40),
            "temperature": rng.choice([0, 0, 0.8]),
            "seed": n,
        }
        for n in range(32)
    ]
    alone = [complete(service, **body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda body: complete(service, **body), bodies))
    assert together == alone


def test_a_client_that_leaves_a_stream_frees_its_blocks(service):
    with httpx.stream("POST", f"{service.url}/v1/completions", json=LONG, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        assert service.metric("trivium_generator_used_kv_blocks") > 0
    eventually(lambda: service.metric("trivium_generator_running_sequences") == 0)
    assert service.metric("trivium_generator_used_kv_blocks") == 0


def test_a_client_that_gives_up_waiting_frees_its_blocks(service):
    finished = service.metric("trivium_generator_output_tokens_total")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{service.url}/v1/completions", json={**LONG, "stream": False, "n": 4}, timeout=1)
    eventually(lambda: service.metric("trivium_generator_running_sequences") == 0)
    assert service.metric("trivium_generator_used_kv_blocks") == 0
    assert service.metric("trivium_generator_output_tokens_total") < finished + 4 * 8000


def test_logprobs_and_echo_survive_the_way_through_the_engine(service):
    fields = {"prompt": [5, 6, 7, 8], "echo": True, "logprobs": 2, "max_tokens": 20, "temperature": 0}
    (choice,) = complete(service, **fields)
    entries = choice["logprobs"]
    assert {len(entries[name]) for name in entries} == {24}
    assert entries["token_logprobs"][0] is None
    assert all(value <= 0 for value in entries["token_logprobs"][1:])
    (alone,) = complete(service, **{**fields, "max_tokens": 0})
    assert alone["logprobs"]["token_logprobs"] == pytest.approx([None, *entries["token_logprobs"][1:4]])


def test_sigterm_lets_streams_finish_refuses_new_requests_and_exits_0(long_llama, tmp_path):
    with (
        start(long_llama, tmp_path / "log", "--shutdown-grace-s", "100") as service,
        httpx.Client(timeout=60) as client,
    ):
        body = {**LONG, "n": 2, "max_tokens": 1000}
        with client.stream("POST", f"{service.url}/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            service.terminate()
            eventually(lambda: httpx.get(f"{service.url}/ready").status_code == 503)
            refused = httpx.post(f"{service.url}/v1/completions", json=LONG)
            rest = [line for line in lines if line]
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "not_ready"
        assert rest[-1] == "data: [DONE]"
        ends = [json.loads(line[6:])["choices"][0]["finish_reason"] for line in rest[:-1]]
        assert sum(end is not None for end in ends) == 2
        assert service.process.wait(10) == 0


def test_the_end_of_the_grace_period_tells_the_client(long_llama, tmp_path):
    with (
        start(long_llama, tmp_path / "log", "--shutdown-grace-s", "0") as service,
        httpx.stream("POST", f"{service.url}/v1/completions", json={**LONG, "n": 4}, timeout=60) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        service.terminate()
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["error"]["code"] == "not_ready"
        assert service.process.wait(10) == 0


def engine_of(service):
    return psutil.Process(service.process.pid).children()[0]


def test_an_engine_that_dies_ends_streams_with_an_error_and_is_started_again(long_llama, tmp_path):
    with start(long_llama, tmp_path / "log") as service:
        with httpx.stream("POST", f"{service.url}/v1/completions", json={**LONG, "n": 4}, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            engine_of(service).kill()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["error"]["code"] == "engine_dead"
        assert httpx.get(f"{service.url}/ready").json() == {"ready": False, "parts": {"engine": "restarting"}}
        refused = httpx.post(f"{service.url}/v1/completions", json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert httpx.get(f"{service.url}/health").status_code == 200
        service.wait_ready()
        assert complete(service, prompt=[5, 6, 7], max_tokens=3)[0]["finish_reason"] == "length"
        assert service.metric("trivium_generator_engine_restarts_total") == 1
        assert service.metric("trivium_generator_running_sequences") == 0


def test_an_engine_that_cannot_be_kept_alive_makes_the_service_unhealthy(tiny_llama, tmp_path):
    with start(tiny_llama, tmp_path / "log", "--max-engine-restarts", "0") as service:
        engine_of(service).kill()
        eventually(lambda: httpx.get(f"{service.url}/health").status_code == 503)
        health = httpx.get(f"{service.url}/health").json()
        assert health == {"status": "failed", "reason": "the engine process ended with exit code -9"}
        assert httpx.get(f"{service.url}/ready").json()["parts"] == {"engine": "dead"}
        assert httpx.post(f"{service.url}/v1/completions", json=LONG).json()["error"]["code"] == "engine_dead"
        service.terminate()
        assert service.process.wait(10) == 0


def test_no_engine_outlives_a_killed_service(tiny_llama, tmp_path):
    with start(tiny_llama, tmp_path / "log") as service:
        engine = engine_of(service)
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
        eventually(lambda: not engine.is_running())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "no-such-folder"], "neither a folder nor a hub id"),
        (["--model", "{tiny}", "--max-model-len", "100000"], "longer than the model's context of 256"),
        (["--model", "{tiny}", "--num-gpu-blocks-override", "3"], "needs 16 KV blocks, but there is memory for 3"),
        (["--model", "{tiny}", "--block-size", "0"], "--block-size"),
    ],
)
def test_a_bad_start_says_why_and_exits(tiny_llama, tmp_path, args, message):
    args = [arg.format(tiny=tiny_llama) for arg in args]
    with ServiceProcess("generator", tmp_path / "log", *args) as service:
        assert service.process.wait(60) in (1, 2)
        assert message in service.log()


def test_the_api_process_never_loads_torch():
    program = "import sys, services.generator.__main__; print('torch' in sys.modules, 'triton' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=True)
    assert out.stdout.split() == ["False", "False"]
