"""The launcher, run as people run it, over tiny services that answer `/ready`: start, a death, every way to end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tools.stack.greeting import greet
from tools.stack.run_lock import stop_holder
from tools.stack.service import trivium_services

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
END_S = 60.0
"""How long a test waits for an end; no test asks how long it took."""

# A service: answers `/ready` once it is released, dies when it is told to, and on SIGTERM leaves, slowly
# if it is slow, and not at all if it is deaf.
FAKE_SERVICE = """
import http.server, os, signal, sys, time
port, is_ready, is_deaf = int(sys.argv[1]), sys.argv[2] != "held", sys.argv[2] == "deaf"
def leave(*_):
    if sys.argv[2] == "slow":
        time.sleep(2)
    print("leaving", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if is_deaf else leave)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global is_ready
        is_ready = is_ready or self.path == "/release"
        if self.path == "/die":
            print("out of luck", flush=True)
            os._exit(3)
        self.send_response(200 if is_ready else 503)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

# The launcher over such services; arguments: run_dir, stop_s, program ("" for none), then one "name:port:kind" each.
FAKE_LAUNCH = f"""
import os, pathlib, socket, sys
from tools.stack.launch import launch
from tools.stack.service import Service
services = []
for spec in sys.argv[4:]:
    name, port, kind = spec.split(":")
    command = [sys.executable, "-c", {FAKE_SERVICE!r}, port, kind]
    services.append(Service(name, command, dict(os.environ), "127.0.0.1", int(port)))
program = [sys.executable, "-c", sys.argv[3]] if sys.argv[3] else []
sys.exit(launch(services, pathlib.Path(sys.argv[1]), greeting="all are ready", program=program, environ=os.environ,
                stop_s=float(sys.argv[2])))
"""


class Launcher:
    """A launcher process under test and the services it started."""

    def __init__(self, run_dir: Path, specs: list[str], *, program: str, stop_s: float) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", FAKE_LAUNCH, str(run_dir), str(stop_s), program, *specs],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._services: list[psutil.Process] = []

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait_for(self, text: str) -> str:
        """Read the output up to the line with `text`; fails if the launcher ends before."""
        lines = []
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            lines.append(line)
            self._services = psutil.Process(self.pid).children(recursive=True) or self._services
            if text in line:
                return "".join(lines)
        pytest.fail(f"the launcher ended without {text!r}:\n{''.join(lines)}")

    def end(self, *numbers: signal.Signals) -> tuple[int, str]:
        """Send the signals, one after the other; answers the exit code and the rest of the output."""
        for number in numbers:
            self._popen.send_signal(number)
            time.sleep(0.5 if len(numbers) > 1 else 0)
        output, _ = self._popen.communicate(timeout=END_S)
        return self._popen.returncode, output

    def running_services(self) -> list[psutil.Process]:
        """Those services that still run, after time enough to be gone."""
        _, alive = psutil.wait_procs(self._services, timeout=5)
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    def close(self) -> None:
        self._popen.kill()
        self._popen.communicate()
        for process in self.running_services():
            process.kill()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Starts launchers and ends them, and what they left, after the test."""
    launchers: list[Launcher] = []

    def start(*specs: str, program: str = "", stop_s: float = 300.0) -> Launcher:
        launchers.append(Launcher(tmp_path / "run", list(specs), program=program, stop_s=stop_s))
        return launchers[-1]

    yield start
    for launcher in launchers:
        launcher.close()


def spec(name: str, kind: str = "", *, port: int | None = None) -> str:
    return f"{name}:{port or free_port()}:{kind}"


def tell(spec: str, path: str) -> None:
    """Have the service release itself or die."""
    connection = http.client.HTTPConnection("127.0.0.1", int(spec.split(":")[1]), timeout=END_S)
    connection.request("GET", path)
    with contextlib.suppress(http.client.HTTPException, OSError):
        connection.getresponse().read()
    connection.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_greets_when_all_are_ready_and_stops_all_on_a_signal(launch: Callable[..., Launcher], tmp_path: Path) -> None:
    held = spec("two", "held")
    launcher = launch(spec("one"), held)
    assert "two        ready" not in launcher.wait_for("one        ready")
    tell(held, "/release")
    assert "two        ready" in launcher.wait_for("all are ready")
    code, _ = launcher.end(signal.SIGTERM)
    assert code == 0
    assert launcher.running_services() == []
    assert [(tmp_path / f"run/logs/{name}.log").read_text() for name in ("one", "two")] == ["leaving\n"] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_starting_stops_all(launch: Callable[..., Launcher], number: signal.Signals) -> None:
    launcher = launch(spec("one"), spec("two", "held"))
    launcher.wait_for("one        ready")
    code, _ = launcher.end(number)
    assert code == 0
    assert launcher.running_services() == []


def test_a_service_that_dies_ends_all_and_its_last_words_are_shown(launch: Callable[..., Launcher]) -> None:
    doomed = spec("two")
    launcher = launch(spec("one"), doomed)
    launcher.wait_for("all are ready")
    tell(doomed, "/die")
    code, output = launcher.end()
    assert code == 1
    assert "error: the two ended with exit code 3" in output
    assert "out of luck" in output
    assert launcher.running_services() == []


def test_a_service_that_ignores_sigterm_is_killed(launch: Callable[..., Launcher]) -> None:
    launcher = launch(spec("one"), spec("two", "deaf"), stop_s=1.0)
    launcher.wait_for("all are ready")
    code, output = launcher.end(signal.SIGTERM)
    assert code == 0
    assert "two        did not stop in time, killed" in output
    assert "one        did not stop" not in output
    assert launcher.running_services() == []


def test_a_second_interrupt_kills_at_once(launch: Callable[..., Launcher]) -> None:
    launcher = launch(spec("one", "deaf"))
    launcher.wait_for("all are ready")
    code, output = launcher.end(signal.SIGINT, signal.SIGINT)
    assert code == 0
    assert "killed" in output
    assert launcher.running_services() == []


def test_a_second_sigterm_is_no_hurry(launch: Callable[..., Launcher], tmp_path: Path) -> None:
    """Whoever ends a process group signals the launcher twice: directly, and through make."""
    launcher = launch(spec("one", "slow"))
    launcher.wait_for("all are ready")
    code, _ = launcher.end(signal.SIGTERM, signal.SIGTERM)
    assert code == 0
    assert (tmp_path / "run/logs/one.log").read_text() == "leaving\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_no_service_outlives_a_killed_launcher(launch: Callable[..., Launcher]) -> None:
    launcher = launch(spec("one"), spec("two", "deaf"))
    launcher.wait_for("all are ready")
    assert len(launcher.running_services()) == 2
    launcher.end(signal.SIGKILL)
    assert launcher.running_services() == []


def test_a_port_in_use_is_named_before_anything_starts(launch: Callable[..., Launcher]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        launcher = launch(spec("one"), spec("two", port=port))
        code, output = launcher.end()
    assert code == 1
    assert output.startswith(f"error: port {port} of the two is in use")
    assert "starting" not in output


def test_one_stack_at_a_time_and_down_stops_it(launch: Callable[..., Launcher], tmp_path: Path) -> None:
    lock = tmp_path / "run" / "stack.pid"
    assert stop_holder(lock) is False
    first = launch(spec("one"))
    first.wait_for("all are ready")
    code, output = launch(spec("one")).end()
    assert code == 1
    assert f"running already (process {first.pid})" in output
    assert stop_holder(lock) is True
    assert first.end()[0] == 0
    assert first.running_services() == []


@pytest.mark.parametrize("code", [0, 7])
def test_a_program_beside_the_services_decides_the_exit_code(launch: Callable[..., Launcher], code: int) -> None:
    launcher = launch(spec("one"), program=f"print('in between', flush=True); raise SystemExit({code})")
    launcher.wait_for("in between")
    assert launcher.end()[0] == code
    assert launcher.running_services() == []


def test_a_signal_cuts_the_program_short(launch: Callable[..., Launcher]) -> None:
    launcher = launch(spec("one"), program="import time; print('waiting', flush=True); time.sleep(60)")
    launcher.wait_for("waiting")
    assert launcher.end(signal.SIGTERM)[0] == 130
    assert launcher.running_services() == []


def test_services_take_shares_of_the_machine_and_the_users_variables_win() -> None:
    environ = {"PATH": "/bin", "TRIVIUM_GENERATOR_MODEL": "org/name", "TRIVIUM_EMBEDDER_PORT": "9002"}
    assert "vision" not in {service.name for service in trivium_services(environ, Path("models"), num_cores=4)}
    services = {service.name: service for service in trivium_services(environ, Path("models"), num_cores=4)}
    assert list(services) == ["generator", "embedder", "reranker", "gateway"]
    assert services["generator"].environment["TRIVIUM_GENERATOR_MODEL"] == "org/name"
    assert services["generator"].environment["TRIVIUM_GENERATOR_NUM_THREADS"] == "4"
    assert services["reranker"].environment["TRIVIUM_RERANKER_MODEL"] == str(Path("models/minilm-reranker"))
    assert services["reranker"].environment["TRIVIUM_RERANKER_NUM_THREADS"] == "2"
    assert services["gateway"].environment["TRIVIUM_GATEWAY_EMBEDDER_URL"] == "http://127.0.0.1:9002"
    assert services["gateway"].port == 8000


def test_the_demo_adapters_are_served_with_the_embedded_model_only() -> None:
    def adapters(**environ: str) -> str | None:
        (generator, *_) = trivium_services(environ, Path("models"), num_cores=1)
        return generator.environment.get("TRIVIUM_GENERATOR_LORA")

    assert adapters() == "pirate=examples/adapters/pirate,json=examples/adapters/json"
    assert adapters(TRIVIUM_GENERATOR_MODEL="org/name") is None
    assert adapters(TRIVIUM_GENERATOR_LORA="mine=folder") == "mine=folder"


def test_a_second_generator_sees_images_where_the_embedded_model_is_served() -> None:
    environ = {"TRIVIUM_VISION_PORT": "9004", "TRIVIUM_GENERATOR_DTYPE": "float32", "TRIVIUM_GENERATOR_LORA": "a=b"}
    services = {service.name: service for service in trivium_services(environ, Path("models"), num_cores=4)}
    assert list(services) == ["generator", "embedder", "reranker", "vision", "gateway"]
    vision, gateway = services["vision"], services["gateway"]
    assert vision.command[-1] == "services.generator"
    assert vision.environment["TRIVIUM_GENERATOR_MODEL"] == str(Path("models/smollm2-135m-vision"))
    assert vision.environment["TRIVIUM_GENERATOR_PORT"] == "9004"
    assert vision.environment["TRIVIUM_GENERATOR_DTYPE"] == "float32"
    assert "TRIVIUM_GENERATOR_LORA" not in vision.environment
    urls = gateway.environment["TRIVIUM_GATEWAY_GENERATOR_URL"]
    assert urls == "http://127.0.0.1:8001,http://127.0.0.1:9004"
    assert gateway.environment["TRIVIUM_GATEWAY_GENERATOR_MAX_BODY_BYTES"] == str(64 * 2**20)


def test_services_that_listen_everywhere_are_reached_on_this_machine() -> None:
    services = trivium_services({"TRIVIUM_RERANKER_HOST": "0.0.0.0"}, Path("models"), num_cores=1)
    assert services[2].url == "http://127.0.0.1:8003"
    assert services[2].environment["TRIVIUM_RERANKER_NUM_THREADS"] == "1"


def test_a_port_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="TRIVIUM_GATEWAY_PORT = 'http' is not a port"):
        trivium_services({"TRIVIUM_GATEWAY_PORT": "http"}, Path("models"), num_cores=1)


def test_the_greeting_names_the_address_and_asks_for_the_key_only_where_there_is_one() -> None:
    text = greet("http://127.0.0.1:8000", has_api_key=False)
    assert text.count("curl http://127.0.0.1:8000/v1/") == 3
    assert "Authorization" not in text
    assert greet("http://127.0.0.1:8000", has_api_key=True).count("Bearer $TRIVIUM_GATEWAY_API_KEY") == 3


def test_the_launcher_itself_says_when_nothing_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.stack", "down"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout == "nothing was running\n"
