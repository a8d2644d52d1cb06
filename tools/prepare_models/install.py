"""Owns how a built folder takes its place in the models directory: built aside, then renamed in one step.

Called by __main__, which holds the directory's lock while it builds.
It must never write into a folder that is in place, and never replace one that this tool did not make.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.prepare_models.errors import PrepareError
from tools.prepare_models.manifest import MANIFEST_NAME, matches_manifest, write_manifest
from tools.prepare_models.recipes import Recipe, Wheel

# Inside the models directory, so that a rename never crosses a file system.
_PARTIAL = ".partial"
_LOCK = ".lock"


def is_prepared(recipe: Recipe, models_dir: Path) -> bool:
    """Whether the folder is in place, complete and made by this very recipe from these very sources."""
    return matches_manifest(models_dir / recipe.name, identity(recipe))


def identity(recipe: Recipe) -> dict[str, Any]:
    """Everything that determines a folder's content, sources of its source included."""
    source = recipe.source
    described = (
        {"wheel": source.requirement, "sha256": source.sha256} if isinstance(source, Wheel) else identity(source)
    )
    known = {"name": recipe.name, "recipe_version": recipe.version, "source": described}
    return known if recipe.own_files is None else {**known, "own_files": _digest(recipe.own_files)}


def _digest(folder: Path) -> str:
    """SHA-256 of the names and contents of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def check_replaceable(recipe: Recipe, models_dir: Path) -> None:
    """Raises PrepareError if another hand put something where the recipe's folder belongs."""
    folder = models_dir / recipe.name
    if folder.exists() and not (folder / MANIFEST_NAME).exists():
        raise PrepareError(
            f"{folder} exists and was not made by this tool (it has no {MANIFEST_NAME}); move it away and run again"
        )


def install(recipe: Recipe, source: Path, models_dir: Path) -> Path:
    """Builds the recipe's folder from `source` and puts it in place; returns it.

    However this ends, no half-made folder stays: a build that is cut short was never in place, and what a killed
    process leaves aside is removed by the next `locked`.
    """
    folder = models_dir / recipe.name
    partial = models_dir / _PARTIAL / recipe.name
    partial.mkdir(parents=True)
    try:
        recipe.build(source, partial)
        write_manifest(partial, identity(recipe))
        if folder.exists():
            # A directory cannot be renamed over a full one; a service that has the old files open keeps them.
            folder.rename(partial.with_name(f"{recipe.name}.replaced"))
        partial.rename(folder)
    finally:
        shutil.rmtree(models_dir / _PARTIAL)
    return folder


@contextmanager
def locked(models_dir: Path) -> Iterator[None]:
    """Holds the models directory for one process: containers that start together may share it as a volume."""
    models_dir.mkdir(parents=True, exist_ok=True)
    with (models_dir / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is preparing {models_dir}; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Nobody else can be building now, so whatever lies aside was left by a killed process.
        shutil.rmtree(models_dir / _PARTIAL, ignore_errors=True)
        yield
