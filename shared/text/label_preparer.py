"""From texts to the sequences of a classifier: each alone, as the model's tokenizer frames one text.

Called off the event loop by the reranker, for `/classify`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from shared.text.frames import Frame, TypedTokens
from shared.text.preparer import Prepared, Truncate, check_texts, fit_sequences
from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LabelPreparer:
    """Sequences of one text; all their tokens have the type of a first text.

    Attributes:
        max_tokens: longest sequence, special tokens included.
    """

    tokenizer: Tokenizer
    max_tokens: int

    def from_texts(self, texts: Sequence[str], *, param: str, truncate: Truncate) -> Prepared[TypedTokens]:
        """One sequence for each text.

        Raises:
            InvalidRequestError: a text is empty; names `param`.
            ContextLengthExceededError: a text is too long and may not be cut; names `param`.
        """
        check_texts(texts, param)
        sequences = self.tokenizer.encode_batch(texts)
        fitted = fit_sequences(sequences, self._frame, self.max_tokens, param=param, truncate=truncate)
        return Prepared([TypedTokens(ids, [0] * len(ids)) for ids in fitted.sequences], fitted.cut)

    @cached_property
    def _frame(self) -> Frame:
        return self.tokenizer.frame()
