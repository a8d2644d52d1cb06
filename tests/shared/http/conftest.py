"""Logs as in production, so that a test sees what an operator sees."""

import pytest

from shared.observability.logging import configure_logging


@pytest.fixture(autouse=True, scope="session")
def _logs() -> None:
    configure_logging("test", "info", "json")
