"""Reads the typed key-value part of a GGUF file and says clearly what is missing or unsupported.

Used by gguf_to_hf and gguf_tokenizer only.
It must not touch tensors and must not guess: a key that a conversion needs and the file lacks is an error.
"""

from __future__ import annotations

from typing import Any

from gguf import GGUFReader

from tools.prepare_models.errors import PrepareError


class GgufMetadata:
    """The metadata of one GGUF file, addressed by its full keys, such as `llama.block_count`."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader

    def integer(self, key: str) -> int:
        return int(self._required(key))

    def optional_integer(self, key: str) -> int | None:
        value = self._optional(key)
        return None if value is None else int(value)

    def real(self, key: str) -> float:
        """The shortest decimal that is the same float32: GGUF holds 1e-5 as 9.999999747378752e-06."""
        field = self._reader.get_field(key)
        if field is None:
            raise PrepareError(f"the GGUF file has no {key}")
        return float(str(field.parts[field.data[0]][0]))

    def boolean(self, key: str) -> bool:
        return bool(self._required(key))

    def text(self, key: str) -> str:
        return str(self._required(key))

    def texts(self, key: str) -> list[str]:
        return [str(item) for item in self._required(key)]

    def integers(self, key: str) -> list[int]:
        return [int(item) for item in self._required(key)]

    def expect(self, key: str, supported: str) -> None:
        """Raises PrepareError unless the text at `key` is the one that the conversion was written for."""
        found = self.text(key)
        if found != supported:
            raise PrepareError(f"the GGUF file says {key} = {found!r}; only {supported!r} can be converted")

    def refuse(self, key: str) -> None:
        """Raises PrepareError if `key` is present: it would change the numbers and nothing here applies it."""
        if self._reader.get_field(key) is not None:
            raise PrepareError(f"the GGUF file has {key}, which cannot be converted")

    def _optional(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def _required(self, key: str) -> Any:
        value = self._optional(key)
        if value is None:
            raise PrepareError(f"the GGUF file has no {key}")
        return value
