"""The embedder as a process: the port opens before the model is there, a bad start ends with one clear line, SIGTERM is clean.

Also what importing its API half must not bring in.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.fakes.service_process import ServiceProcess


@pytest.mark.e2e
@pytest.mark.models
def test_loading_is_told_and_sigterm_is_clean(models_dir: Path, tmp_path: Path) -> None:
    with ServiceProcess("embedder", tmp_path / "log", "--model", str(models_dir / "all-minilm-l6-v2")) as service:
        loading = ask_while_loading(service.url)
        assert loading.status_code == 503
        assert loading.json() == {"ready": False, "parts": {"model": "loading"}}
        refused = httpx.post(f"{service.url}/v1/embeddings", json={"input": "a"})
        if refused.status_code != 200:
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
            assert "retry-after" in refused.headers
        service.wait_ready()
        assert httpx.get(f"{service.url}/ready").json() == {"ready": True, "parts": {"model": "ready"}}
        assert httpx.post(f"{service.url}/v1/embeddings", json={"input": "a"}).status_code == 200
        service.terminate()
        assert service.process.wait(15) == 0


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
    with ServiceProcess("embedder", tmp_path / "log", "--model", str(tmp_path)) as service:
        assert service.process.wait(60) == 1
        log = (tmp_path / "log").read_text()
        assert "has no config.json" in log.strip().splitlines()[-1]
        assert "Traceback" not in log


@pytest.mark.parametrize("module", ["services.embedder.app", "services.reranker.app"])
def test_importing_a_service_leaves_torch_out(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0
