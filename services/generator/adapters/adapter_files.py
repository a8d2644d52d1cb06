"""The tensors of an adapter's folder by name, from one safetensors file or several.

Used by `outline`, which needs their headers only, and by `peft_folder`. Knows no module.
"""

from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from services.generator.adapters.folder_files import find_file, read_object, refusal
from services.generator.adapters.tensor_file import TensorFile
from shared.errors import InvalidRequestError

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
        self._where: dict[str, TensorFile] = {}
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
            file = self._open_files.enter_context(closing(TensorFile(path)))
        except (OSError, ValueError) as error:
            raise _unreadable(path.name, error) from None
        for name in file.entries:
            if name in self._where:
                raise refusal(name, "is there twice")
            self._where[name] = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._open_files.close()

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """From the header."""
        return self._where[name].entries[name].shape

    def dtype(self, name: str) -> str:
        """As safetensors writes it, such as F32; from the header."""
        return self._where[name].entries[name].dtype

    def read(self, name: str) -> Tensor:
        """The tensor, whose dtype is F32, F16 or BF16.

        Raises:
            InvalidRequestError: it cannot be read; names it.
        """
        try:
            return self._where[name].read(name)
        except (OSError, ValueError) as error:
            raise _unreadable(name, error) from None


def _unreadable(name: str, error: OSError | ValueError) -> InvalidRequestError:
    return refusal(name, f"cannot be read: {error.strerror if isinstance(error, OSError) else error}")


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
