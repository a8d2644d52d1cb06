"""The tensors of an adapter's folder by name, from one safetensors file or several, by mmap.

Used by `outline`, which needs their headers only, and by `peft_folder`. Knows no module.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from services.generator.adapters.folder_files import find_file, read_object, refusal

WEIGHTS, INDEX, PICKLED = "adapter_model.safetensors", "adapter_model.safetensors.index.json", "adapter_model.bin"


class AdapterFiles:
    """All tensors; use as a context manager so that the files are closed.

    Args:
        root: what every file must lie below, links followed.
    Raises:
        InvalidRequestError: a file is missing, broken or outside of `root`; names it.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self._open_files = ExitStack()
        self._where: dict[str, Any] = {}
        try:
            paths, listed = _shards(folder, root)
            for path in paths:
                self._add(path)
            missing = listed - set(self._where)
            if missing:
                raise refusal(INDEX, f"lists {min(missing)}, which no file holds")
        except BaseException:
            self._open_files.close()
            raise

    def _add(self, path: Path) -> None:
        try:
            file = self._open_files.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name in self._where:
                    raise refusal(name, "is there twice")
                self._where[name] = file
        except (SafetensorError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise refusal(path.name, f"cannot be read: {reason}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._open_files.close()

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """From the header."""
        return tuple(self._where[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors writes it, such as F32; from the header."""
        return str(self._where[name].get_slice(name).get_dtype())

    def read(self, name: str) -> Tensor:
        """The tensor; its pages are read when it is used."""
        tensor: Tensor = self._where[name].get_tensor(name)
        return tensor


def _shards(folder: Path, root: Path | None) -> tuple[list[Path], set[str]]:
    """The files, and the tensors that an index says they hold."""
    whole = find_file(folder, WEIGHTS, root)
    if whole is not None:
        return [whole], set()
    if find_file(folder, INDEX, root) is None:
        is_pickled = find_file(folder, PICKLED, root) is not None
        raise refusal(WEIGHTS, f"is missing; {PICKLED} is pickled, so it is not read" if is_pickled else "is missing")
    places = read_object(folder, INDEX, root).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise refusal(INDEX, "has no weight_map of file names")
    return [_shard(folder, name, root) for name in sorted(set(places.values()))], set(places)


def _shard(folder: Path, name: str, root: Path | None) -> Path:
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise refusal(INDEX, f"names {name!r}, which is no safetensors file of the folder")
    path = find_file(folder, name, root)
    if path is None:
        raise refusal(name, "is missing")
    return path
