"""From a client's texts or token ids to sequences a model can take; every limit is checked here, by name.

Called off the event loop by the `prepare` module of each service. Cuts only what a request allows to be cut, and says what it
cut; what is too long otherwise is refused with the counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Literal, TypeVar

from shared.errors import ContextLengthExceededError, InvalidRequestError
from shared.text.frames import Frame
from shared.text.prompts import Prompts
from shared.text.tokenizer import Tokenizer
from shared.text.vector_shape import VectorShape

Truncate = Literal["none", "start", "end"]
"""Which end of an input that is too long is dropped."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Prepared(Generic[Item]):
    """What the model has to see.

    Attributes:
        cut: places of the inputs that were too long and lost an end.
    """

    sequences: list[Item]
    cut: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextPreparer:
    """A tokenizer with the limits of one model.

    Attributes:
        max_tokens: longest sequence, special tokens included.
        vocab_size: ids from here on are outside the vocabulary.
        prompts: texts that the model wants before its inputs.
        vectors: what it gives for them.
    """

    tokenizer: Tokenizer
    max_tokens: int
    vocab_size: int
    is_lowercased: bool
    prompts: Prompts
    vectors: VectorShape

    def from_texts(
        self, texts: Sequence[str], *, prompt: str, param: str, truncate: Truncate = "none"
    ) -> Prepared[list[int]]:
        """Token ids of `texts` behind `prompt`, special tokens included; what is cut is the text with its prompt.

        Raises:
            InvalidRequestError: a text is empty; names `param`.
            ContextLengthExceededError: a text is too long for the model and may not be cut; names `param`.
        """
        check_texts(texts, param)
        prepared = [prompt + text for text in texts] if prompt else texts
        if self.is_lowercased:
            prepared = [text.lower() for text in prepared]
        sequences = self.tokenizer.encode_batch(prepared)
        return fit_sequences(sequences, self._frame, self.max_tokens, param=param, truncate=truncate)

    def from_token_ids(
        self, sequences: Sequence[list[int]], *, param: str, truncate: Truncate = "none"
    ) -> Prepared[list[int]]:
        """`sequences` as they are, without prompt and without special tokens added.

        Raises:
            InvalidRequestError: a sequence is empty or has an id outside the vocabulary; names `param` and the id.
            ContextLengthExceededError: a sequence is too long for the model and may not be cut; names `param`.
        """
        for index, sequence in enumerate(sequences):
            if sequence and max(sequence) >= self.vocab_size:
                bad = next(token_id for token_id in sequence if token_id >= self.vocab_size)
                raise InvalidRequestError(
                    f"{place(param, index, len(sequences))} has the token id {bad}, "
                    f"which is outside the model's vocabulary of {self.vocab_size}",
                    param=param,
                )
        return fit_sequences(list(sequences), Frame([], []), self.max_tokens, param=param, truncate=truncate)

    @cached_property
    def _frame(self) -> Frame:
        return self.tokenizer.frame()


def fit_sequences(
    sequences: list[list[int]], frame: Frame, max_tokens: int, *, param: str, truncate: Truncate
) -> Prepared[list[int]]:
    """`sequences` with those that are too long cut, their `frame` left whole.

    Raises:
        InvalidRequestError: a sequence is empty; names `param`.
        ContextLengthExceededError: a sequence is longer than `max_tokens` and may not be cut; names `param`.
    """
    fitted, cut = list(sequences), []
    for index, sequence in enumerate(sequences):
        if not sequence:
            raise InvalidRequestError(f"{place(param, index, len(sequences))} has no tokens", param=param)
        if len(sequence) <= max_tokens:
            continue
        if truncate == "none" or len(frame) >= max_tokens:
            raise ContextLengthExceededError(
                f"{place(param, index, len(sequences))} has {len(sequence)} tokens, special tokens included; "
                f"the model's maximum is {max_tokens} tokens",
                param=param,
            )
        fitted[index] = _cut(sequence, frame, max_tokens, truncate)
        cut.append(index)
    return Prepared(fitted, tuple(cut))


def _cut(sequence: list[int], frame: Frame, max_tokens: int, truncate: Truncate) -> list[int]:
    """`sequence` at `max_tokens`, with its frame whole.

    before | inner tokens, `num_kept` of them stay | after
    """
    inner = sequence[len(frame.before) : len(sequence) - len(frame.after)]
    num_kept = max_tokens - len(frame)
    kept = inner[:num_kept] if truncate == "end" else inner[-num_kept:]
    return [*frame.before, *kept, *frame.after]


def check_texts(texts: Sequence[str], param: str) -> None:
    """See that no text is empty.

    Raises:
        InvalidRequestError: one is; names `param` and its place.
    """
    for index, text in enumerate(texts):
        if not text:
            raise InvalidRequestError(f"{place(param, index, len(texts))} is an empty string", param=param)


def place(param: str, index: int, count: int) -> str:
    """How an error calls one of `count` inputs."""
    return param if count == 1 else f"{param}.{index}"
