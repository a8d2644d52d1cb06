"""Reads tensors from a model folder's safetensors files, sharded or not, by mmap.

Used by every model's loader. Checks presence, shape and leftovers; knows no architecture and no module.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

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
