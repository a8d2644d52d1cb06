"""Owns the file that makes a folder a prepared one: what it was made from, and which files it then held.

Written and read by install only.
It must stay cheap to check, so it compares sizes and never reads a model's bytes again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MANIFEST_NAME = ".prepared.json"


def write_manifest(folder: Path, identity: dict[str, Any]) -> None:
    """Records `identity` and every file now in `folder`; to be called when all of them are written."""
    content = {"identity": identity, "file_sizes_bytes": _file_sizes_bytes(folder)}
    (folder / MANIFEST_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def matches_manifest(folder: Path, identity: dict[str, Any]) -> bool:
    """Whether `folder` was made from exactly `identity` and still holds every file in full.

    Files added later are not looked at: a user may put notes or a cache beside the weights.
    """
    try:
        content = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return False
    if not isinstance(content, dict) or content.get("identity") != identity:
        return False
    recorded: dict[str, int] = content["file_sizes_bytes"]
    return recorded.items() <= _file_sizes_bytes(folder).items()


def _file_sizes_bytes(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST_NAME)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
