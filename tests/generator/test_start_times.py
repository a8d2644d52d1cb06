"""Seconds of the parts of a start, by a clock that is played here."""

from types import SimpleNamespace

from services.generator.engine import start_times
from services.generator.engine.start_times import StartTimes


def test_parts_the_rest_and_the_total(monkeypatch):
    ticks = iter([10.0, 11.0, 13.5, 14.0, 14.25, 20.0])
    monkeypatch.setattr(start_times, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    times = StartTimes()
    for name in ("weights", "graphs"):
        with times.part(name):
            pass
    assert times.in_seconds() == {"weights_s": 2.5, "graphs_s": 0.25, "rest_s": 7.25, "total_s": 10.0}
