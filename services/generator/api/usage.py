"""Counts the tokens of one request as its pieces go out.

One per request, used by the completion and chat routes for whole answers and streams alike.
"""

from collections.abc import Sequence

from services.generator.frontend.generation import TextPiece
from services.generator.metrics import GeneratorMetrics
from shared.contracts.generation import PromptTokensDetails, Usage


class UsageCounter:
    """Each prompt counts once, the output of all choices together.

    Args:
        prompts: token ids of each prompt; choice `i` answers prompt `i // num_choices`.
        num_choices: answers to each prompt.
        metrics: told of every piece too.
    """

    def __init__(self, prompts: Sequence[list[int]], num_choices: int, metrics: GeneratorMetrics) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = sum(map(len, prompts))
        self._num_choices = num_choices
        self._num_output_tokens = 0
        self._cached_tokens: dict[int, int] = {}

    def add(self, index: int, piece: TextPiece) -> None:
        """Count a piece of choice `index`."""
        self._num_output_tokens += len(piece.token_ids)
        self._metrics.record(len(piece.token_ids), piece.public_reason)
        if piece.num_cached_tokens is not None and index % self._num_choices == 0:  # the others share with the first
            self._cached_tokens[index] = piece.num_cached_tokens

    def total(self) -> Usage:
        """The sum so far."""
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_output_tokens,
            total_tokens=self._num_prompt_tokens + self._num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached_tokens.values())),
        )
