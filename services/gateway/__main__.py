"""Entry point: `python -m services.gateway`; reads the settings, serves, and ends with the process's exit code."""

import resource
import sys

from services.gateway.app import build_app
from services.gateway.settings import GatewaySettings
from shared.http.lifecycle import Lifecycle
from shared.http.server import serve
from shared.observability.logging import configure_logging
from shared.settings.base import load_settings


def main() -> int:
    """Run the gateway until it is told to stop."""
    settings = load_settings(GatewaySettings, sys.argv[1:])
    configure_logging("gateway", settings.log_level, settings.log_format)
    _raise_file_limit()
    lifecycle = Lifecycle()
    return serve(build_app(settings, lifecycle), settings, lifecycle)


def _raise_file_limit() -> None:
    """Take all the open files the system allows: each request holds two sockets, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
