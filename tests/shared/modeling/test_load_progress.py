"""What a loader says while it loads: a bar in a terminal, else an event a tenth, and little when it is quick."""

import io

import pytest

from shared.modeling import load_progress
from shared.modeling.load_progress import LoadProgress
from tests.fakes.recorder import record


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Moves on by `step_s` whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def load(monkeypatch):
    def run(stream: io.StringIO, step_s: float, pieces: int = 200) -> list[dict]:
        lines = record(monkeypatch, load_progress)
        progress = LoadProgress(pieces * 2**20, stream=stream, clock=Clock(step_s))
        for _ in range(pieces):
            progress.advance(2**20)
        progress.finish()
        return lines

    return run


def test_an_event_about_every_tenth_and_one_at_the_end(load):
    stream = io.StringIO()
    logs = load(stream, step_s=2.0)
    assert [line["percent"] for line in logs[:-1]] == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert {line["event"] for line in logs[:-1]} == {"weights_loading"}
    assert logs[-1]["event"] == "weights_loaded"
    assert logs[-1]["gib"] == pytest.approx(200 / 1024, abs=1e-3)
    assert stream.getvalue() == ""


def test_a_quick_load_says_only_that_it_is_done(load):
    assert [line["event"] for line in load(io.StringIO(), step_s=0.0001)] == ["weights_loaded"]
    terminal = Terminal()
    assert [line["event"] for line in load(terminal, step_s=0.0001)] == ["weights_loaded"]
    assert terminal.getvalue() == ""


def test_a_terminal_gets_a_bar_that_is_wiped_at_the_end(load):
    terminal = Terminal()
    assert [line["event"] for line in load(terminal, step_s=2.0)] == ["weights_loaded"]
    drawn = terminal.getvalue().split("\r")
    assert drawn[1] == f"loading weights [{'.' * 40}]   1% of 0.20 GiB"
    assert drawn[-2].startswith(f"loading weights [{'#' * 39}.]  99%")
    assert drawn[-1] == "\x1b[K"


def test_one_tensor_is_a_load_too(load):
    assert [line["event"] for line in load(io.StringIO(), step_s=2.0, pieces=1)] == ["weights_loaded"]
    assert [line["event"] for line in load(io.StringIO(), step_s=2.0, pieces=0)] == ["weights_loaded"]
