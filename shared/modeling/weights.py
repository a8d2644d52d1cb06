"""Reads tensors from a model folder's safetensors files, sharded or not, by mmap.

Used by every model's loader. Checks presence, shape and leftovers; knows no architecture and no module.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_INDEX = "model.safetensors.index.json"


class WeightFiles:
    """The tensors of a folder by name; use as a context manager so that the files are closed.

    Args:
        folder: a Hugging Face model folder.
    Raises:
        ModelFolderError: there are no safetensors files, or one cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._open_files = ExitStack()
        self._where: dict[str, Any] = {}
        self._read: set[str] = set()
        for path in _shards(folder):
            try:
                file = self._open_files.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelFolderError(f"{path.name} cannot be read: {error}") from error
            self._where.update(dict.fromkeys(file.keys(), file))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._open_files.close()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def names(self) -> frozenset[str]:
        """All tensor names in the folder."""
        return frozenset(self._where)

    def read(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The tensor `name` as `dtype`.

        Raises:
            ModelFolderError: it is missing or has another shape.
        """
        if name not in self._where:
            raise ModelFolderError(f"tensor {name} is missing")
        tensor: Tensor = self._where[name].get_tensor(name)
        if tuple(tensor.shape) != tuple(shape):
            raise ModelFolderError(f"tensor {name} has shape {list(tensor.shape)}, the config asks for {list(shape)}")
        self._read.add(name)
        return tensor.to(dtype)

    def read_rows(self, name: str, rows: Sequence[int], width: int, dtype: torch.dtype) -> Tensor:
        """Some rows of the matrix `name` [N, width] as `dtype`, without reading the others.

        Raises:
            ModelFolderError: it is missing, has another width or fewer rows.
        """
        if name not in self._where:
            raise ModelFolderError(f"tensor {name} is missing")
        shape = self.shape(name)
        if len(shape) != 2 or shape[1] != width or max(rows) >= shape[0]:
            raise ModelFolderError(f"tensor {name} has shape {list(shape)}, which lacks rows {list(rows)} of {width}")
        self._read.add(name)
        part = self._where[name].get_slice(name)
        return torch.cat([part[row : row + 1] for row in rows]).to(dtype)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of `name`, without reading it."""
        return tuple(self._where[name].get_slice(name).get_shape())

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """See, before anything is read, that all tensors of a model are there, of these shapes and not quantised.

        Raises:
            ModelFolderError: some are not; the message counts them and describes the first.
        """
        missing = [name for name in shapes if name not in self._where]
        if missing:
            raise ModelFolderError(f"{len(missing)} tensors are missing, such as {missing[0]}")
        wrong = [name for name, shape in shapes.items() if self.shape(name) != tuple(shape)]
        if wrong:
            name, shape = wrong[0], list(shapes[wrong[0]])
            raise ModelFolderError(
                f"{len(wrong)} tensors have another shape than the config asks for, "
                f"such as {name}: {list(self.shape(name))} instead of {shape}"
            )
        dtypes = {name: self._where[name].get_slice(name).get_dtype() for name in shapes}
        quantised = [name for name, dtype in dtypes.items() if dtype not in _FLOATS]
        if quantised:
            name = quantised[0]
            raise ModelFolderError(
                f"{len(quantised)} tensors are stored in a precision that is not supported, such as {name}: {dtypes[name]}"
            )

    def copy(self, name: str, destination: Tensor) -> None:
        """Copy the tensor `name`, checked before, into `destination`, converting to its dtype and device."""
        destination.copy_(self._where[name].get_tensor(name))
        self._read.add(name)

    def is_equal(self, name: str, other: str) -> bool:
        """Whether the two tensors hold the same values in the same precision."""
        first, second = (self._where[each].get_tensor(each) for each in (name, other))
        return first.dtype == second.dtype and torch.equal(first, second)

    def unread(self) -> frozenset[str]:
        """Names nobody asked for; a loader decides which of them may be ignored."""
        return frozenset(self._where) - self._read


def _shards(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        shards = {str(name) for name in read_json(folder / _INDEX).get("weight_map", {}).values()}
        if any(Path(name).name != name for name in shards):
            raise ModelFolderError(f"{_INDEX} names a file outside the folder")
        return sorted(folder / name for name in shards)
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if any(folder.glob("*.bin")):
        raise ModelFolderError(
            f"{folder} has pickled weights only, which are not loaded; with transformers installed, convert them by "
            f"AutoModel.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    raise ModelFolderError(f"{folder} has no model.safetensors")
