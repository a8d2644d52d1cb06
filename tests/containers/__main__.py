"""`python -m tests.containers`: builds the CPU images from a clean clone, brings the stack up for real, uses it, takes all down.

Run by `make test-containers`, with the standard library alone, so that it needs no environment. Where no container engine
answers it says so and succeeds. Whatever happens it leaves no container, network, volume or image of its own behind.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.containers.compose import Compose, ComposeError, why_not
from tests.containers.exchanges import EXCHANGES, read_metric, send_embedding

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / ".run" / "containers.log"
UP_TIMEOUT_S = 300


def main() -> int:
    """Do all of it; answers the exit code."""
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    LOG.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trivium-containers-") as scratch:
        stack = Compose(clone_head(Path(scratch)), LOG)
        try:
            run(stack)
        except (ComposeError, AssertionError, OSError) as error:
            stack.log_state()
            print(f"failed: {error}\nwhat was run, and the end of the services' logs: {LOG}", file=sys.stderr)
            return 1
        finally:
            stack.remove()
    say("passed; everything is taken down")
    return 0


def run(stack: Compose) -> None:
    """Build, up, requests, two embedders, a clean end."""
    say("building the images")
    stack("build")
    say("starting the stack; the first start prepares the models")
    stack("up", "--detach", "--no-build", "--wait", "--wait-timeout", str(UP_TIMEOUT_S))
    for name, exchange in EXCHANGES.items():
        exchange(stack.url)
        say(f"answered: {name}")
    check_images(stack)
    check_scaling(stack)
    check_stop(stack)


def check_images(stack: Compose) -> None:
    """No service runs as root, and the gateway's image has no torch."""
    for service in ("gateway", "generator", "embedder", "reranker"):
        user = stack("exec", "-T", service, "id", "-u").strip()
        assert user == "10001", f"the {service} runs as user {user}"
    probe = "import importlib.util as u; print(u.find_spec('torch'))"
    assert stack("exec", "-T", "gateway", "python", "-c", probe).strip() == "None", "the gateway's image has torch"
    say("no service runs as root; the gateway has no torch")


def check_scaling(stack: Compose) -> None:
    """A second embedder is found by its name and gets a share of the requests."""
    stack("up", "--detach", "--no-build", "--wait", "--no-recreate", "--scale", "embedder=2")
    replicas = 'trivium_gateway_upstream_replicas{service="embedder",state="ready"}'
    deadline_s = time.monotonic() + 30
    while read_metric(stack.metrics(), replicas) != 2:
        assert time.monotonic() < deadline_s, "the gateway does not find the second embedder"
        time.sleep(0.5)
    for _ in range(20):
        send_embedding(stack.url)
    answered = 'trivium_embedder_http_requests_total{code="200",path="/v1/embeddings"}'
    counts = [read_metric(stack.metrics("embedder", index), answered) for index in (1, 2)]
    assert min(counts) > 0, f"one embedder got all requests: {counts}"
    say(f"scaled to two embedders; they answered {counts[0]:.0f} and {counts[1]:.0f} requests")


def check_stop(stack: Compose) -> None:
    """SIGTERM ends every service in time and in order: with exit code 0."""
    stack("stop")
    codes = {line for line in stack("ps", "--all", "--format", "{{.Service}} {{.ExitCode}}").splitlines() if line}
    assert all(line.endswith(" 0") for line in codes), f"not every service stopped cleanly: {sorted(codes)}"
    say("stopped; every service ended with exit code 0")


def clone_head(scratch: Path) -> Path:
    """A clone of the commit checked out here, so that nothing counts that is not in it."""
    commit = git("-C", str(ROOT), "rev-parse", "HEAD")
    if git("-C", str(ROOT), "status", "--porcelain"):
        say("note: changes that are not committed are not in what is built")
    folder = scratch / "clone"
    git("clone", "--quiet", "--no-checkout", str(ROOT), str(folder))
    git("-C", str(folder), "checkout", "--quiet", "--detach", commit)
    say(f"a clean clone of {commit[:12]}")
    return folder


def git(*arguments: str) -> str:
    executable = shutil.which("git") or "git"
    return subprocess.run([executable, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED_S:5.0f} s] {text}", flush=True)


STARTED_S = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
