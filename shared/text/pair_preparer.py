"""From queries and documents to the sequences of a cross-encoder: each pair as the model's tokenizer joins two texts.

Called off the event loop by the reranker. A pair that is too long loses the end of its document where the request allows it,
never a part of its query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from shared.errors import ContextLengthExceededError, InvalidRequestError
from shared.text.frames import PairFrame, TypedTokens
from shared.text.preparer import Prepared, Truncate, check_texts, place
from shared.text.tokenizer import Tokenizer

Value = TypeVar("Value")


@dataclass(frozen=True)
class PairRules:
    """How the texts of a request become pairs.

    Attributes:
        query_param, document_param: fields of the request, for errors.
        truncate: which end of a document that does not fit may go.
        max_document_tokens: documents are cut to so many tokens, and to what fits, whatever `truncate` says.
        instruction: what a judge is told to look for; None for its own.
    """

    query_param: str
    document_param: str
    truncate: Truncate = "none"
    max_document_tokens: int | None = None
    instruction: str | None = None


class PairPreparer(Protocol):
    """Makes pairs in one model's way."""

    @property
    def max_tokens(self) -> int:
        """Longest pair, special tokens included."""
        ...

    def from_pairs(self, queries: Sequence[str], documents: Sequence[str], rules: PairRules) -> Prepared[TypedTokens]:
        """One sequence for each document, with its own query or with the only one.

        Raises:
            InvalidRequestError: a text is empty, or a rule cannot be followed; names the field.
            ContextLengthExceededError: a pair is too long and may not be cut; names the field.
        """
        ...


@dataclass(frozen=True)
class FramedPairPreparer:
    """Pairs in the tokenizer's own convention.

    Attributes:
        frame: special tokens round and between the two texts.
    """

    tokenizer: Tokenizer
    max_tokens: int
    frame: PairFrame

    def from_pairs(self, queries: Sequence[str], documents: Sequence[str], rules: PairRules) -> Prepared[TypedTokens]:
        """See `PairPreparer`."""
        if rules.instruction is not None:
            raise InvalidRequestError("instruction is not supported by this model", param="instruction")
        check_texts(queries, rules.query_param)
        check_texts(documents, rules.document_param)
        firsts = self.tokenizer.encode_batch(queries, add_special_tokens=False)
        seconds = self.tokenizer.encode_batch(documents, add_special_tokens=False)
        fit = DocumentFit(self.max_tokens, rules, len(documents))
        rooms = fit.rooms([len(self.frame) + len(first) for first in firsts])
        kept = [fit.keep(index, second, rooms[index]) for index, second in enumerate(seconds)]
        pairs = zip(spread(firsts, len(kept)), kept, strict=True)
        return Prepared([self.frame.join(first, second) for first, second in pairs], fit.cut)


def spread(values: list[Value], count: int) -> list[Value]:
    """One value for each of `count` documents: the only one for all, or each its own."""
    return values * count if len(values) == 1 else values


class DocumentFit:
    """Cuts the documents of one request to the room that their queries leave, and remembers which."""

    def __init__(self, max_tokens: int, rules: PairRules, num_documents: int) -> None:
        self._max_tokens = max_tokens
        self._rules = rules
        self._num_documents = num_documents
        self._cut: list[int] = []

    @property
    def cut(self) -> tuple[int, ...]:
        """Places of the documents that lost an end."""
        return tuple(self._cut)

    def rooms(self, taken: Sequence[int]) -> list[int]:
        """Tokens left for each document when so many are `taken` by its query, or by the only one.

        Raises:
            ContextLengthExceededError: a query leaves none.
        """
        for index, num_taken in enumerate(taken):
            if num_taken >= self._max_tokens:
                raise ContextLengthExceededError(
                    f"{place(self._rules.query_param, index, len(taken))} takes {num_taken} tokens, special tokens "
                    f"included; the model's maximum is {self._max_tokens}, which leaves none for a document",
                    param=self._rules.query_param,
                )
        return spread([self._max_tokens - num_taken for num_taken in taken], self._num_documents)

    def keep(self, index: int, document: list[int], room: int) -> list[int]:
        """What stays of document `index`.

        Raises:
            ContextLengthExceededError: it does not fit and may not be cut.
        """
        rules = self._rules
        limit = min(room, rules.max_document_tokens or room)
        if len(document) <= limit:
            return document
        if rules.truncate == "none" and rules.max_document_tokens is None:
            where = place(rules.document_param, index, self._num_documents)
            raise ContextLengthExceededError(
                f"{where} has {len(document)} tokens; the model's maximum of {self._max_tokens} leaves {room} beside the query "
                "and special tokens; truncate or max_tokens_per_doc would cut it",
                param=rules.document_param,
            )
        self._cut.append(index)
        return document[-limit:] if rules.truncate == "start" else document[:limit]
