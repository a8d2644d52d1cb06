"""The files that this repository's own checks look at.

Read by check_sizes and check_names. Knows folders only, nothing of what is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_GENERATED = {"models", "build", "dist", "__pycache__"}


def source_files(root: Path, pattern: str = "*") -> Iterator[Path]:
    """Files below `root` whose name matches, in order; hidden, generated and downloaded folders are left out."""
    for path in sorted(root.iterdir()):
        if path.is_dir():
            if not _is_skipped(path, root):
                yield from source_files(path, pattern)
        elif path.match(pattern):
            yield path


def _is_skipped(folder: Path, root: Path) -> bool:
    # A package may be called "models" too: only the folder at the root holds downloaded ones.
    is_package = (folder / "__init__.py").exists()
    return folder.name.startswith(".") or folder.suffix == ".egg-info" or (folder.name in _GENERATED and not is_package)
