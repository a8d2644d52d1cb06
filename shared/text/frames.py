"""The special tokens that a tokenizer puts round one text and round a pair, found by looking at what it makes of a probe.

Used by the preparers to cut a text without cutting those, and to make many pairs of one query. Knows ids, no strings.
"""

from dataclasses import dataclass

from tokenizers import Encoding


@dataclass(frozen=True)
class TypedTokens:
    """One sequence of one or two texts.

    Attributes:
        type_ids: which text each token belongs to, as the tokenizer has it; models without types of tokens do not look.
    """

    token_ids: list[int]
    type_ids: list[int]

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Frame:
    """What stands round a text."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, probe: Encoding) -> "Frame":
        """The frame in the encoding of any text that has a token; empty where the tokenizer made none of it."""
        places = [place for place, sequence in enumerate(probe.sequence_ids) if sequence == 0]
        return cls([], []) if not places else cls(probe.ids[: places[0]], probe.ids[places[-1] + 1 :])

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


@dataclass(frozen=True)
class PairFrame:
    """What stands round and between two texts, with the type ids of all."""

    before: TypedTokens
    between: TypedTokens
    after: TypedTokens
    first_type: int
    second_type: int

    @classmethod
    def of(cls, probe: Encoding) -> "PairFrame | None":
        """The frame in the encoding of any pair of texts with tokens; None where nothing stands between them."""
        first, second = (
            [place for place, sequence in enumerate(probe.sequence_ids) if sequence == index] for index in (0, 1)
        )
        if not first or not second or second[0] == first[-1] + 1:
            return None

        def part(start: int, end: int) -> TypedTokens:
            return TypedTokens(probe.ids[start:end], probe.type_ids[start:end])

        return cls(
            part(0, first[0]),
            part(first[-1] + 1, second[0]),
            part(second[-1] + 1, len(probe.ids)),
            probe.type_ids[first[0]],
            probe.type_ids[second[0]],
        )

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: list[int], second: list[int]) -> TypedTokens:
        """The pair of two texts that were tokenized without special tokens."""
        return TypedTokens(
            [*self.before.token_ids, *first, *self.between.token_ids, *second, *self.after.token_ids],
            [
                *self.before.type_ids,
                *[self.first_type] * len(first),
                *self.between.type_ids,
                *[self.second_type] * len(second),
                *self.after.type_ids,
            ],
        )
