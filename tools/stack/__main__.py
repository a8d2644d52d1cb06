"""`python -m tools.stack up|down`: the four services on this machine, as `make up`, `make demo` and `make down` run them.

The composition root of the launcher: reads the command line and the environment, builds what `launch` runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.stack.greeting import greet
from tools.stack.launch import LOCK_NAME, launch
from tools.stack.process import signal_at_parents_death
from tools.stack.run_lock import stop_holder
from tools.stack.service import trivium_services

RUN_DIR = Path(".run")
API_KEY = "TRIVIUM_GATEWAY_API_KEY"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; answers the exit code."""
    options = _parse(arguments)
    if options.verb == "down":
        return _down()
    if options.with_parent:
        signal_at_parents_death(signal.SIGTERM)
    return _up(options.models_dir, options.demo)


def _up(models_dir: Path, has_demo: bool) -> int:
    try:
        services = trivium_services(os.environ, models_dir, len(os.sched_getaffinity(0)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    gateway = services[-1]
    key = os.environ.get(API_KEY)
    if not has_demo:
        return launch(services, RUN_DIR, greeting=greet(gateway.url, bool(key)))
    demo = [sys.executable, "-m", "examples.rag", "--base-url", f"{gateway.url}/v1"]
    return launch(services, RUN_DIR, program=demo + (["--api-key", key] if key else []), environ=os.environ)


def _down() -> int:
    try:
        was_running = stop_holder(RUN_DIR / LOCK_NAME)
    except TimeoutError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("stopped" if was_running else "nothing was running")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.stack", description="The four services on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start them, until Ctrl-C; every TRIVIUM_… variable is passed on to them")
    up.add_argument("--models-dir", type=Path, default=Path("models"), help="the embedded models (%(default)s)")
    up.add_argument("--demo", action="store_true", help="run the RAG example against them, then stop")
    up.add_argument("--with-parent", action="store_true", help="stop when the process that started this one is gone")
    verbs.add_parser("down", help="stop what an `up` in this checkout started")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
