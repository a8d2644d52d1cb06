"""The texts that a model wants before its inputs, by their names in the folder and by what an input is.

Held by `TextPreparer`; which one a request means is decided here, and a name that is not there is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shared.errors import InvalidRequestError

InputKind = Literal["text", "query", "document"]
"""What an input is to the model: a search query, a document that is searched, or neither is known."""

_NAMES: Mapping[InputKind, tuple[str, ...]] = {
    "text": (),
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


@dataclass(frozen=True)
class Prompts:
    """All prompts of one model.

    Attributes:
        default: stands before inputs for which the folder has no prompt of their own; empty for none.
    """

    by_name: Mapping[str, str]
    default: str = ""

    def of_kind(self, kind: InputKind) -> str:
        """The prompt for inputs of `kind`, by the first of its usual names that the folder has."""
        return next((self.by_name[name] for name in _NAMES[kind] if name in self.by_name), self.default)

    def named(self, name: str, *, param: str) -> str:
        """The prompt that the folder calls `name`.

        Raises:
            InvalidRequestError: it has none of that name; names `param` and what there is.
        """
        if name not in self.by_name:
            names = ", ".join(sorted(self.by_name)) or "none"
            raise InvalidRequestError(f"{param} is not a prompt of the model; its prompts are: {names}", param=param)
        return self.by_name[name]

    def by_kind(self) -> dict[str, str]:
        """What each kind gets, where it gets anything; for the log."""
        found = {kind: self.of_kind(kind) for kind in _NAMES}
        return {kind: prompt for kind, prompt in found.items() if prompt}
