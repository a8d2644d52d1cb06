"""Values of an `adapter_config.json`, each of the type that its key asks for.

Used by `peft_config`. Knows no key.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from services.generator.adapters.expressions import MAX_WAYS, num_ways
from services.generator.adapters.folder_files import refusal

Names = str | tuple[str, ...]
"""Modules: a regular expression for whole names, or names and ends of names."""

MIN_FP32, MAX_FP32 = 1.2e-38, 3.4e38
MAX_INTEGER = 2**31 - 1


def number(raw: Mapping[str, Any], key: str, default: float) -> float:
    """A positive number that fp32 can hold; `default` where the key is absent."""
    return _checked_number(key, raw.get(key, default))


def integer(raw: Mapping[str, Any], key: str, default: int) -> int:
    """A positive integer; `default` where the key is absent."""
    return _checked_integer(key, raw.get(key, default))


def flag(raw: Mapping[str, Any], key: str) -> bool:
    """True or false; false where the key is absent or null."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise refusal(key, f"is {value!r}, neither true nor false")
    return bool(value)


def text(raw: Mapping[str, Any], key: str) -> str | None:
    """A string or null."""
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise refusal(key, f"is {value!r}, not a string")
    return value


def integers(raw: Mapping[str, Any], key: str) -> dict[str, int]:
    """Positive integers by pattern."""
    return {name: _checked_integer(f"{key}.{name}", value) for name, value in _patterns(raw, key).items()}


def numbers(raw: Mapping[str, Any], key: str) -> dict[str, float]:
    """Positive numbers by pattern."""
    return {name: _checked_number(f"{key}.{name}", value) for name, value in _patterns(raw, key).items()}


def names(raw: Mapping[str, Any], key: str) -> Names:
    """Names of modules; none where the key is absent, null or empty."""
    value = raw.get(key) or ()
    if isinstance(value, str):
        check_expressions(key, [value])
        return value
    return strings(raw, key)


def strings(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of strings; none where the key is absent, null or empty."""
    value = raw.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refusal(key, f"is {value!r}, not a list of strings")
    return tuple(value)


def indices(raw: Mapping[str, Any], key: str) -> frozenset[int] | None:
    """One index or a list of them; None where that says nothing."""
    value = raw.get(key)
    items = [value] if type(value) is int else value
    if items is None or items == []:
        return None
    if not isinstance(items, list) or not all(type(item) is int for item in items):
        raise refusal(key, f"is {value!r}, neither an integer nor a list of integers")
    return frozenset(items)


def check_expressions(key: str, expressions: Iterable[str]) -> None:
    """Refuse what is no regular expression, and those that together may take for ever to match."""
    ways = 0.0
    for expression in expressions:
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            raise refusal(key, f"{expression!r} is no regular expression: {error}") from None
        ways += num_ways(expression)
        if ways > MAX_WAYS:
            raise refusal(key, f"{expression!r} may take too long to match: it has too many repetitions and choices")


def _patterns(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    values = raw.get(key) or {}
    if not isinstance(values, dict):
        raise refusal(key, f"is {values!r}, not an object")
    check_expressions(key, (f"(.*\\.)?({name})$" for name in values))
    return values


def _checked_number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_FP32 <= value <= MAX_FP32:
        raise refusal(key, f"is {value!r}, not a positive number that fp32 can hold")
    return float(value)


def _checked_integer(key: str, value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_INTEGER:
        raise refusal(key, f"is {value!r}, not a positive integer below 2³¹")
    return value
