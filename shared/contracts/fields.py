"""Which of three lists a public field stands in, said where the field is declared: supported, harmless or refused.

Contracts put `HARMLESS` or `only(…)` into a field's annotation; pydantic enforces the latter, `tools.api_fields` writes the table
of all. A field without a marker is supported; a field that no contract declares is unknown, which is an error of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Standing(StrEnum):
    """The three lists."""

    SUPPORTED = "supported"
    HARMLESS = "harmless"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Harmless:
    """Marks a field that is checked for its type and changes no answer."""


HARMLESS = Harmless()


@dataclass(frozen=True, slots=True)
class Only:
    """Marks a field that is refused except at values that change nothing."""

    neutral: tuple[Any, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The field's own schema with the refusal behind it."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if value is not None and value not in self.neutral:
            allowed = "".join(f" or send {item!r}" for item in self.neutral)
            raise ValueError(f"is not supported; leave it out{allowed}")
        return value


def only(*neutral: Any) -> Only:
    """Refuse a field unless it is left out, null or one of `neutral`."""
    return Only(neutral)


def standing(metadata: Iterable[Any]) -> Standing:
    """The list of a field with these annotations."""
    for item in metadata:
        if isinstance(item, Only):
            return Standing.REFUSED
        if isinstance(item, Harmless):
            return Standing.HARMLESS
    return Standing.SUPPORTED
