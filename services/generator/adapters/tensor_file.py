"""One safetensors file of an adapter, read by `read` calls.

Used by `AdapterFiles`. Never maps the file: whoever copies a new version over an old one cuts it short for a moment, and a process
that touches mapped pages behind the end is killed by the system, with all of its requests.

Format: https://github.com/huggingface/safetensors#format
"""

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.generator.adapters.folder_files import MAX_JSON_BYTES

_LENGTH = struct.Struct("<Q")
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What the header says of a tensor; `dtype` as it is written there, `start` counted from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


class TensorFile:
    """An open file.

    Raises:
        OSError: it cannot be opened or read.
        ValueError: it is no safetensors file; says why.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        try:
            self.entries = self._header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str) -> Tensor:
        """A tensor of one of the dtypes F32, F16 and BF16.

        Raises:
            OSError, ValueError: it cannot be read, or the file ends before it does.
        """
        entry = self.entries[name]
        content = self._bytes(entry.start, entry.num_bytes)
        return content.view(_DTYPES[entry.dtype]).view(entry.shape)

    def _bytes(self, start: int, num_bytes: int) -> Tensor:
        """Bytes as uint8 [num_bytes]."""
        content = torch.empty(num_bytes, dtype=torch.uint8)
        rest = content.numpy().data
        self._file.seek(start)
        while rest:
            num_read = self._file.readinto(rest)
            if not num_read:
                raise ValueError("it ends before its tensors do")
            rest = rest[num_read:]
        return content

    def _header(self) -> dict[str, TensorEntry]:
        (length,) = _LENGTH.unpack(self._bytes(0, _LENGTH.size).numpy().data)
        begin, end = _LENGTH.size + length, os.fstat(self._file.fileno()).st_size
        if length > MAX_JSON_BYTES or begin > end:
            raise ValueError("its header is longer than the file, or too long")
        try:
            header = json.loads(self._bytes(_LENGTH.size, length).numpy().tobytes())
            entries = {name: _entry(fields, begin) for name, fields in header.items() if name != "__metadata__"}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ValueError("its header is broken") from None
        for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.num_bytes)):
            if entry.start != begin:
                raise ValueError("its tensors overlap, or leave a gap")
            begin += entry.num_bytes
        if begin != end:
            raise ValueError("its tensors do not end where it does")
        return entries


def _entry(fields: Any, data_begin: int) -> TensorEntry:
    (begin, end), shape, dtype = fields["data_offsets"], fields["shape"], fields["dtype"]
    if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError("a field of another type")
    num_bytes = end - begin
    if num_bytes < 0 or (dtype in _DTYPES and num_bytes != math.prod(shape) * _DTYPES[dtype].itemsize):
        raise ValueError("a shape of another size")
    return TensorEntry(dtype, tuple(shape), data_begin + begin, num_bytes)
