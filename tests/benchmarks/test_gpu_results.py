"""What the GPU benchmarks keep of a row, and when."""

import json
from collections import Counter

import pytest

from benchmarks.gpu import results as module
from benchmarks.gpu.results import LATEST, Results, parser_of
from benchmarks.gpu.timing import time_runs
from services.generator.core.launch import Launch


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(module, "machine", lambda: {"device": "a device"})


def results(*options):
    return Results(parser_of("gpu", "").parse_args(options), "history.jsonl")


def test_a_row_is_kept_before_the_next_is_measured(tmp_path):
    (tmp_path / LATEST).write_text('{"a": 1.0, "other": 7.0}', encoding="utf-8")
    rows = results("--out", str(tmp_path), "--commit", "abc")
    rows.measure("a", lambda: [3.0, 1.00004, 2.0])
    with pytest.raises(KeyboardInterrupt):
        rows.measure("b", interrupted)
    assert json.loads((tmp_path / LATEST).read_text(encoding="utf-8")) == {"a": 2.0, "other": 7.0}
    (line,) = (tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(line)
    assert row.pop("at").endswith("+00:00")
    assert row == {"row": "a", "median": 2.0, "runs": [3.0, 1.0, 2.0], "commit": "abc", "device": "a device"}


def interrupted():
    raise KeyboardInterrupt


def test_steps_of_a_row_are_those_since_it_began(tmp_path, capsys):
    rows, steps = results("--out", str(tmp_path)), Counter({Launch.REPLAY: 100, Launch.PROMPT: 5})

    def work():
        steps.update({Launch.REPLAY: 3, Launch.NO_GRAPH: 1})
        return [1.0]

    rows.measure("a", work, lambda: Counter(steps), goal=2.5, vllm=None)
    assert json.loads((tmp_path / "history.jsonl").read_text(encoding="utf-8"))["steps"] == {"replay": 3, "no_graph": 1}
    printed = capsys.readouterr().out
    assert "goal 2.5" in printed
    assert "vllm" not in printed
    assert "replayed 75.0% of 4 steps, fall-backs 1" in printed


def test_rows_that_are_not_asked_for_are_not_run_and_a_tiny_model_s_are_not_kept(tmp_path):
    rows = results("--out", str(tmp_path / "out"), "--rows", "a*", "--tiny")
    rows.measure("b", interrupted)
    rows.add("b", [1.0])
    rows.measure("a1", lambda: [1.0])
    assert not (tmp_path / "out").exists()
    rows.check_any()


def test_a_pattern_without_rows_is_refused(tmp_path):
    rows = results("--out", str(tmp_path), "--rows", "x*")
    rows.add("a", [1.0])
    with pytest.raises(SystemExit, match=r"--rows x\*: no row"):
        rows.check_any()


def test_a_warm_up_is_no_run():
    calls = []
    assert len(time_runs(lambda: calls.append(1), 3, num_warm_ups=2)) == 3
    assert len(calls) == 5
