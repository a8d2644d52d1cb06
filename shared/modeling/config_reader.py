"""Reads typed values out of a JSON object and remembers which keys were asked for, so that the rest can be refused.

Used by whoever turns a config.json, or a part of it, into a frozen description. Knows no key's meaning.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from shared.settings.errors import ModelFolderError


class ConfigReader:
    """A JSON object, read key by key; a key that is null counts as absent.

    Args:
        values: the object.
        where: what to call it in errors.
        defaults: what absent keys mean.
    """

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        self._values = values
        self._where = where
        self._defaults = defaults or {}
        self._read: set[str] = set()

    def value(self, key: str) -> Any:
        """The value of `key`: its default where the key is absent, None where it is null."""
        self._read.add(key)
        return self._values.get(key, self._defaults.get(key))

    def integer(self, key: str) -> int:
        """A positive whole number.

        Raises:
            ModelFolderError: the key is absent or its value is anything else.
        """
        value = self.optional_int(key)
        if value is None:
            raise ModelFolderError(f"{self._where} has no number {key}")
        return value

    def optional_int(self, key: str) -> int | None:
        """A positive whole number, or None where the key is absent."""
        value = self.optional_number(key)
        if value is not None and (value != int(value) or value < 1):
            raise ModelFolderError(f"{self._where}: {key} is {value}, not a positive whole number")
        return None if value is None else int(value)

    def number(self, key: str) -> float:
        """A number above 0; absence is an error, as in `integer`."""
        value = self.optional_number(key)
        if value is None:
            raise ModelFolderError(f"{self._where} has no number {key}")
        if value == 0:
            raise ModelFolderError(f"{self._where}: {key} is 0")
        return value

    def optional_number(self, key: str) -> float | None:
        """A number from 0 up, or None where the key is absent."""
        value = self.value(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise ModelFolderError(f"{self._where}: {key} is {value!r}, not a number from 0 up")
        return value if isinstance(value, int) else float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; absence is an error."""
        value = self.value(key)
        if not isinstance(value, list) or not all(type(item) in (int, float) for item in value):
            raise ModelFolderError(f"{self._where}: {key} is not a list of numbers")
        return tuple(value)

    def boolean(self, key: str, *, default: bool = False) -> bool:
        """True or false; `default` where the key is absent."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelFolderError(f"{self._where}: {key} is {value!r}, not true or false")
        return value

    def refuse_unread(self, harmless: Iterable[str] = ()) -> None:
        """Call last.

        Raises:
            ModelFolderError: a key that is not null was never asked for and is not among the `harmless` ones.
        """
        known = self._read | set(harmless)
        unknown = sorted(key for key, value in self._values.items() if key not in known and value is not None)
        if unknown:
            raise ModelFolderError(f"{self._where}: {', '.join(unknown)} is not supported")
