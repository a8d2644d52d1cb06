"""Stands in for a module's logger and keeps what it is told, however logging was configured by tests before."""

from types import ModuleType

import pytest


class Recorder:
    """One dict per line: its event and its fields."""

    def __init__(self) -> None:
        self.lines: list[dict] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append({"event": event, **fields})

    warning = error = info


def record(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> list[dict]:
    """Lines that `modules` log from now on."""
    recorder = Recorder()
    for module in modules:
        monkeypatch.setattr(module, "log", recorder)
    return recorder.lines
