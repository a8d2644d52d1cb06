"""The embedder as a process: the port opens before the model is there, a bad start ends with one clear line, SIGTERM is clean.

Also what importing its API half must not bring in.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.serving import wait_until_ready


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "services.embedder", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.e2e
@pytest.mark.models
def test_loading_is_told_and_sigterm_is_clean(models_dir: Path) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with started("--model", str(models_dir / "all-minilm-l6-v2"), "--port", str(port)) as process:
        loading = ask_while_loading(address)
        assert loading.status_code == 503
        assert loading.json() == {"ready": False, "parts": {"model": "loading"}}
        refused = httpx.post(f"{address}/v1/embeddings", json={"input": "a"})
        if refused.status_code != 200:
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
            assert "retry-after" in refused.headers
        wait_until_ready(address)
        assert httpx.get(f"{address}/ready").json() == {"ready": True, "parts": {"model": "ready"}}
        assert httpx.post(f"{address}/v1/embeddings", json={"input": "a"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def ask_while_loading(address: str) -> httpx.Response:
    """The first answer of `/ready`: the port opens long before torch is imported."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return httpx.get(f"{address}/ready")
        except httpx.ConnectError:
            time.sleep(0.02)
    raise TimeoutError


@pytest.mark.e2e
def test_a_start_error_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with started("--model", str(tmp_path), "--port", str(free_port())) as process:
        _, log = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "has no config.json" in log.strip().splitlines()[-1]
        assert "Traceback" not in log


@pytest.mark.parametrize("module", ["services.embedder.app", "services.reranker.app"])
def test_importing_a_service_leaves_torch_out(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0
