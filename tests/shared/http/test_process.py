"""A service as a process: how it starts, stops, fails, and logs."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.fakes.live_server import free_port, wait_until

pytestmark = pytest.mark.e2e


class Process:
    """The tiny service in a process of its own."""

    def __init__(self, *flags: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "tests.fakes.tiny_service", "--port", str(port), *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def wait_ready(self) -> None:
        wait_until(lambda: self._get("/health"), "the service answers")

    def _get(self, path: str) -> bool:
        try:
            return httpx.get(self.url + path, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def end(self) -> int:
        code = self.process.wait(15)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.process.kill()
        process.end()


def start(started: list[Process], *flags: str) -> Process:
    process = Process(*flags)
    started.append(process)
    process.wait_ready()
    return process


def test_sigterm_lets_streams_finish_refuses_the_rest_and_exits_0(started: list[Process]) -> None:
    service = start(started, "--shutdown-grace-s", "30")
    with (
        httpx.stream("POST", service.url + "/stream", timeout=20) as endless,
        httpx.stream("POST", service.url + "/stream-into-drain", timeout=20) as ending,
    ):
        endless_lines, ending_lines = endless.iter_lines(), ending.iter_lines()
        assert next(endless_lines) == next(ending_lines) == 'data: {"n":0}'
        service.process.send_signal(signal.SIGTERM)
        assert [line for line in ending_lines if line] == ['data: {"n":1}', "data: [DONE]"]
        refused = httpx.post(service.url + "/echo", json={"text": "a"}, timeout=5)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert "draining" in httpx.get(service.url + "/ready", timeout=5).text
        assert httpx.get(service.url + "/health", timeout=5).status_code == 200
        service.process.send_signal(signal.SIGTERM)  # the second ends what still runs
        rest = [line for line in endless_lines if line]
    assert json.loads(rest[0].removeprefix("data: "))["error"]["code"] == "not_ready"
    assert rest[1:] == ["data: [DONE]"]
    assert service.end() == 0


def test_end_of_the_grace_period_ends_streams_and_exits_0(started: list[Process]) -> None:
    service = start(started, "--shutdown-grace-s", "0.2")
    with httpx.stream("POST", service.url + "/stream", timeout=20) as response:
        lines = response.iter_lines()
        assert next(lines) == 'data: {"n":0}'
        service.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert "shutting down" in rest[0]
    assert rest[1:] == ["data: [DONE]"]
    assert service.end() == 0


def test_sigterm_when_idle_exits_0_although_connections_are_open(started: list[Process]) -> None:
    service = start(started)
    with httpx.Client() as client:
        response = client.post(
            service.url + "/echo", json={"text": "a"}, headers={"x-request-id": "from-the-client"}, timeout=5
        )
        assert response.status_code == 200
        service.process.send_signal(signal.SIGINT)
        assert service.end() == 0
    lines = [json.loads(line) for line in service.lines]
    requests = [line for line in lines if line["event"] == "http_request"]
    assert [line["path"] for line in requests] == ["/echo"], "one line a request, none for /health"
    assert requests[0]["request_id"] == "from-the-client"
    assert requests[0]["service"] == "tiny"
