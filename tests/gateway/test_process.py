"""The gateway as a process: its entry point, and how it stops."""

import json
import signal
import subprocess
import sys

import httpx
import pytest

from tests.fakes.fake_service import Call
from tests.fakes.live_server import free_port, wait_until
from tests.gateway.conftest import Suite

pytestmark = pytest.mark.e2e


def test_sigterm_lets_streams_finish_refuses_the_rest_and_exits_0(suite: Suite) -> None:
    async def hold(call: Call) -> None:
        await call.start_events()
        await call.chunk(b"data: 1\n\n")
        await suite.generator.wait_release()
        await call.chunk(b"data: 2\n\ndata: [DONE]\n\n", is_last=True)

    suite.generator.handler = hold
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "services.gateway", "--port", str(port), "--shutdown-grace-s", "30"]
    for name in ("generator", "embedder", "reranker"):
        command += [f"--{name}-url", suite.serve(getattr(suite, name)).url]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def status(path: str) -> int:
        try:
            return httpx.get(url + path, timeout=5).status_code
        except httpx.TransportError:
            return 0

    try:
        wait_until(lambda: status("/ready") == 200 or process.poll() is not None, "ready")
        headers = {"x-request-id": "of-the-client"}
        with httpx.stream("POST", url + "/v1/completions", json={}, headers=headers, timeout=20) as response:
            lines = response.iter_lines()
            assert next(lines) == "data: 1"
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: "draining" in httpx.get(url + "/ready", timeout=5).text, "draining")
            refused = httpx.post(url + "/v1/embeddings", json={}, timeout=5)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
            assert status("/health") == 200
            suite.generator.release.set()
            assert [line for line in lines if line] == ["data: 2", "data: [DONE]"]
        _, stderr = process.communicate(timeout=15)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
    rows = [json.loads(line) for line in stderr.splitlines()]
    served = [row for row in rows if row["event"] == "http_request" and row["path"] == "/v1/completions"]
    assert [row["request_id"] for row in served] == ["of-the-client"]
    assert suite.generator.calls[0].headers["x-request-id"] == "of-the-client"
