"""Opens the files of an adapter's folder, which may come from anyone: bounded, inside of its root, and every failure by its name.

Used by the readers of the configuration and of the weights.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequestError

MAX_JSON_BYTES = 16 << 20
"""Far above any configuration or index that PEFT writes."""

Look = dict[str, tuple[int, int, int]]
"""Size and times of files by name."""

MAX_SHOWN_CHARS = 500
"""Of what is quoted from a folder, which may be anything."""


def shown(text: str) -> str:
    """`text` as it can be sent: not long, and without the lone surrogates that JSON and names of files may hold."""
    short = text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
    return short.encode("utf-8", "backslashreplace").decode()


def is_text(path: Path) -> bool:
    """Whether the path is UTF-8, so that it can be sent."""
    return not any("\ud800" <= char <= "\udfff" for char in str(path))


def refusal(key: str, problem: str) -> InvalidRequestError:
    """What a client is told about a key, file or tensor."""
    return InvalidRequestError(f"{shown(key)}: {shown(problem)}", param=shown(key))


def look_at(folder: Path) -> Look:
    """All files of `folder`, as an index may name any; the time of change too, which modes touch and no copying tool keeps."""
    look: Look = {}
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):  # what is gone, or a link to nowhere
                status = (folder / name).stat()
                look[name] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return look


def check_unchanged(folder: Path, before: Look) -> None:
    """Called when all of `folder` was read, whose files may otherwise be of several versions.

    Raises:
        InvalidRequestError: it does not look as before; names a file.
    """
    after = look_at(folder)
    changed = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    if changed:
        raise refusal(changed[0], "changed while the adapter was read")


def find_file(folder: Path, name: str, root: Path | None) -> Path | None:
    """The regular file `name` in `folder`, None if there is none.

    Args:
        root: what the file, links followed, must lie below; None lets links lead anywhere.
    Raises:
        InvalidRequestError: it lies elsewhere; names the file.
    """
    path = folder / name
    try:
        if not path.is_file():
            return None
        if root is not None and not path.resolve(strict=True).is_relative_to(root.resolve(strict=True)):
            raise refusal(name, "is a link that leads out of the root")
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name that no file can have
        raise refusal(name, f"cannot be read: {type(error).__name__}") from None
    return path


def read_object(folder: Path, name: str, root: Path | None) -> dict[str, Any]:
    """The JSON object in the file `name`.

    Raises:
        InvalidRequestError: the file is missing, too large, or holds something else; names the file.
    """
    path = find_file(folder, name, root)
    if path is None:
        raise refusal(name, "is missing")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
        if len(content) > MAX_JSON_BYTES:
            raise refusal(name, f"is larger than {MAX_JSON_BYTES} bytes")
        raw = json.loads(content.decode("utf-8"))
    except OSError as error:
        raise refusal(name, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise refusal(name, f"is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise refusal(name, "is not a JSON object")
    return raw
