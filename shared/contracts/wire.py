"""The base of everything that is JSON on a port; every contract module builds on it.

Strict on purpose: `true` is not a number, `"3"` is not a number, NaN is not a number, an unknown field is an error.
Must not know HTTP, routes or any one service.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeGuard

from pydantic import BaseModel, ConfigDict, Field

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""One vocabulary id; whether it is inside the model's vocabulary is the service's check."""

TextsOrIds = (
    str
    | Annotated[list[str], Field(fail_fast=True)]
    | Annotated[list[TokenId], Field(fail_fast=True)]
    | Annotated[list[list[TokenId]], Field(fail_fast=True)]
)
"""A text, token ids, or a list of either. Each type gives up at the first item that is not its own: an error for each of thousands
of ids, from both lists that they are not, took most of the time of reading a prompt."""

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


ModelName = Annotated[str, Field(max_length=256)]

TruncateSide = Literal["none", "start", "end"]
"""Which end of a text that is too long is dropped; `none` refuses it."""


class WireModel(BaseModel):
    """A JSON object whose fields are exactly the declared ones."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )


def one_by_one(given: TextsOrIds) -> Sequence[str | list[int]]:
    """Each text, or each list of token ids; a flat list of ids is one."""
    if isinstance(given, str) or _is_ids(given):
        return [given]
    return [item for item in given if not isinstance(item, int)]


def _is_ids(given: Sequence[object]) -> TypeGuard[list[int]]:
    """All items are of the kind of the first: its type says so."""
    return len(given) > 0 and isinstance(given[0], int)
