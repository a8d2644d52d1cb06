"""From a client's texts or token ids to sequences a model can take; every limit is checked here, by name.

Called off the event loop by the `prepare` module of each service. Never truncates: what is too long is refused with the counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shared.errors import ContextLengthExceededError, InvalidRequestError
from shared.text.tokenizer import Tokenizer

InputKind = Literal["text", "query", "document"]
"""What an input is to the model: a search query, a document that is searched, or neither is known."""


@dataclass(frozen=True)
class TextPreparer:
    """A tokenizer with the limits of one model.

    Attributes:
        max_tokens: longest sequence, special tokens included.
        vocab_size: ids from here on are outside the vocabulary.
        prompts: text that the model wants before an input of each kind; empty for none.
    """

    tokenizer: Tokenizer
    max_tokens: int
    vocab_size: int
    is_lowercased: bool
    prompts: Mapping[InputKind, str]

    def from_texts(self, texts: Sequence[str], *, kind: InputKind, param: str) -> list[list[int]]:
        """Token ids of `texts` behind the prompt of their kind, special tokens included.

        Raises:
            InvalidRequestError: a text is empty; names `param`.
            ContextLengthExceededError: a text is too long for the model; names `param`.
        """
        for index, text in enumerate(texts):
            if not text:
                raise InvalidRequestError(f"{_place(param, index, len(texts))} is an empty string", param=param)
        prompt = self.prompts[kind]
        prepared = [prompt + text for text in texts] if prompt else texts
        if self.is_lowercased:
            prepared = [text.lower() for text in prepared]
        sequences = self.tokenizer.encode_batch(prepared)
        self._check_lengths(sequences, param)
        return sequences

    def from_token_ids(self, sequences: Sequence[list[int]], *, param: str) -> list[list[int]]:
        """`sequences` as they are, without prompt and without special tokens added.

        Raises:
            InvalidRequestError: a sequence is empty or has an id outside the vocabulary; names `param` and the id.
            ContextLengthExceededError: a sequence is too long for the model; names `param`.
        """
        self._check_lengths(sequences, param)
        for index, sequence in enumerate(sequences):
            if max(sequence) >= self.vocab_size:
                bad = next(token_id for token_id in sequence if token_id >= self.vocab_size)
                raise InvalidRequestError(
                    f"{_place(param, index, len(sequences))} has the token id {bad}, "
                    f"which is outside the model's vocabulary of {self.vocab_size}",
                    param=param,
                )
        return list(sequences)

    def _check_lengths(self, sequences: Sequence[list[int]], param: str) -> None:
        for index, sequence in enumerate(sequences):
            place = _place(param, index, len(sequences))
            if not sequence:
                raise InvalidRequestError(f"{place} has no tokens", param=param)
            if len(sequence) > self.max_tokens:
                raise ContextLengthExceededError(
                    f"{place} has {len(sequence)} tokens, special tokens included; "
                    f"the model's maximum is {self.max_tokens} tokens",
                    param=param,
                )


def _place(param: str, index: int, count: int) -> str:
    return param if count == 1 else f"{param}.{index}"
