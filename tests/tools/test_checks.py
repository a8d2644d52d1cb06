"""The repository's own checks, on small trees that are just inside and just outside of each limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_files, check_names, check_sizes
from tools.source_files import source_files


def write(root: Path, name: str, content: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def function(num_lines: int, parameters: str = "") -> str:
    return f"def f({parameters}):\n" + "    x = 1\n" * (num_lines - 1)


@pytest.mark.parametrize(("name", "most"), [("shared/a.py", 400), ("tests/test_a.py", 600)])
def test_files_have_a_longest_length(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, most: int) -> None:
    write(tmp_path, name, "x = 1\n" * most)
    assert check_sizes.main([], tmp_path) == 0
    write(tmp_path, name, "x = 1\n" * (most + 1))
    assert check_sizes.main([], tmp_path) == 1
    assert capsys.readouterr().out == f"{name}:1: the file has {most + 1} lines; at most {most}\n"


def test_functions_have_a_longest_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "shared/a.py", function(60))
    assert check_sizes.main([], tmp_path) == 0
    write(tmp_path, "shared/a.py", "class A:\n" + "\n".join(f"    {line}" for line in function(61).splitlines()))
    assert check_sizes.main([], tmp_path) == 1
    assert "shared/a.py:2: f() has 61 lines; at most 60" in capsys.readouterr().out


@pytest.mark.parametrize("parameters", ["a, b, c, d, e, f", "self, a, b, *, c, d, e, f"])
def test_six_parameters_besides_self_are_allowed(tmp_path: Path, parameters: str) -> None:
    write(tmp_path, "shared/a.py", function(2, parameters))
    assert check_sizes.main([], tmp_path) == 0
    write(tmp_path, "shared/a.py", function(2, f"{parameters}, one_more"))
    assert check_sizes.main([], tmp_path) == 1


def test_kernels_answer_for_the_length_of_their_files_only(tmp_path: Path) -> None:
    name = "services/generator/kernels/op.py"
    write(tmp_path, name, function(300, ", ".join(f"p{i}" for i in range(20))))
    assert check_sizes.main([], tmp_path) == 0
    write(tmp_path, name, function(401))
    assert check_sizes.main([], tmp_path) == 1


def test_tests_take_any_number_of_fixtures(tmp_path: Path) -> None:
    write(tmp_path, "tests/test_a.py", function(2, "a, b, c, d, e, f, g"))
    assert check_sizes.main([], tmp_path) == 0


def test_advice_does_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "shared/a.py", function(36))
    assert check_sizes.main(["--advice"], tmp_path) == 0
    assert capsys.readouterr().out == "shared/a.py:1: f() has 36 lines; at most 35 (advice)\n"


@pytest.mark.parametrize("name", ["shared/utils.py", "shared/common/a.py", "tests/helpers.py", "docs/misc.md"])
def test_names_that_say_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    write(tmp_path, "shared/text/tokenizer.py")
    assert check_names.main(tmp_path) == 0
    write(tmp_path, name)
    assert check_names.main(tmp_path) == 1
    assert capsys.readouterr().out.startswith(f"{name}: ")


def test_what_is_not_source_is_left_out(tmp_path: Path) -> None:
    kept = ["services/generator/models/__init__.py", "shared/a.py"]
    for name in [*kept, ".venv/utils.py", "models/m/common.json", "shared/__pycache__/a.pyc", "trivium.egg-info/a"]:
        write(tmp_path, name)
    assert [path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)] == kept


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        ("clean\n", None),
        ("", None),
        ("a \n", "1: a trailing blank"),
        ("a\r\n", "1: a trailing blank"),
        ("a", "1: the file should end with one line break"),
        ("a\n\n", "3: the file should end with one line break"),
        ("a\n<<<<<<< HEAD\n", "2: a conflict marker"),
        ("-----BEGIN RSA " + "PRIVATE KEY-----\n", "1: a private key"),
    ],
)
def test_text_is_clean(tmp_path: Path, content: str, finding: str | None) -> None:
    (tmp_path / "a.txt").write_bytes(content.encode())
    assert list(check_files.check(tmp_path / "a.txt")) == ([finding] if finding else [])


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("a.json", "{}\n", "{\n"), ("a.toml", "a = 1\n", "a = \n"), ("a.yml", "a: !reset []\n", "a: [\n")],
)
def test_data_files_can_be_parsed(tmp_path: Path, name: str, good: str, bad: str) -> None:
    (tmp_path / name).write_text(good)
    assert check_files.main(tmp_path) == 0
    (tmp_path / name).write_text(bad)
    assert check_files.main(tmp_path) == 1


def test_large_files_are_refused_whatever_is_in_them(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"\xff" * check_files.MAX_BYTES)
    assert check_files.main(tmp_path) == 0
    path.write_bytes(b"\xff" * (check_files.MAX_BYTES + 1))
    assert check_files.main(tmp_path) == 1
