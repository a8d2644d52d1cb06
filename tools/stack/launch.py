"""One launch from beginning to end: check the ports, start, greet, watch or run the demo, stop.

Called by __main__ and by tests, which bring services of their own. Turns whatever ends a launch into an exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.stack.probe import is_port_free
from tools.stack.run_lock import AlreadyRunning, run_lock
from tools.stack.service import Service
from tools.stack.supervisor import STOP_S, ServiceDied, StopRequested, Supervisor, say

LOCK_NAME = "stack.pid"


class PortsInUse(Exception):
    """Something else listens where services should; the message names each."""


def launch(
    services: Sequence[Service],
    run_dir: Path,
    *,
    greeting: str = "",
    program: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    stop_s: float = STOP_S,
) -> int:
    """Run the services until the end is asked for, or for as long as `program` takes.

    Args:
        run_dir: gets the lock file and the folder of logs.
        greeting: printed when all services are ready.
        program: a command to run beside the services once they are ready; they are stopped when it ends.
        environ: of the program.
        stop_s: seconds that the services have to stop.

    Returns:
        0 after a signal, the program's exit code, 130 if a signal cut the program short, 1 with a reason on standard error.
    """
    try:
        with run_lock(run_dir / LOCK_NAME):
            _check_ports(services)
            say(f"Starting {len(services)} services; their logs are in {run_dir / 'logs'}")
            with Supervisor(services, run_dir / "logs", stop_s) as supervisor:
                return _run(supervisor, greeting, program, environ or {})
    except (AlreadyRunning, PortsInUse, ServiceDied) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1


def _run(supervisor: Supervisor, greeting: str, program: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        supervisor.start()
        say(greeting)
        if not program:
            supervisor.watch()
        return supervisor.run_beside(program, environ)
    except StopRequested:
        say("Stopping (Ctrl-C again kills at once)")
        return 130 if program else 0


def _check_ports(services: Sequence[Service]) -> None:
    taken = [service for service in services if not is_port_free(service)]
    if taken:
        raise PortsInUse(
            "".join(f"port {service.port} of the {service.name} is in use\n" for service in taken)
            + "stop what listens there, or choose other ports: TRIVIUM_GENERATOR_PORT=… and so on"
        )
