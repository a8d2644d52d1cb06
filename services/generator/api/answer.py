"""Gathers the pieces of all choices for an answer that is not streamed.

Called by the completion and chat routes.
"""

from contextlib import aclosing
from dataclasses import dataclass, field

from services.generator.api.usage import UsageCounter
from services.generator.frontend.generation import Pieces, ScoredToken
from shared.contracts.generation import FinishReason
from shared.errors import InternalError


@dataclass(slots=True)
class WholeChoice:
    """One choice as far as its pieces have come; finished once it has a reason."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)

    @property
    def reason(self) -> FinishReason:
        """Why it ended."""
        if self.finish_reason is None:
            raise InternalError("a choice ended without a reason; this is a bug")
        return self.finish_reason


async def collect(pieces: Pieces, num_choices: int, usage: UsageCounter) -> list[WholeChoice]:
    """Every choice in order of its index, once all have ended; their tokens are counted in `usage`."""
    choices = [WholeChoice() for _ in range(num_choices)]
    async with aclosing(pieces):
        async for index, piece in pieces:
            usage.add(index, piece)
            choice = choices[index]
            choice.texts.append(piece.text)
            choice.token_ids += piece.token_ids
            choice.tokens += piece.tokens
            choice.finish_reason, choice.stop_reason = piece.public_reason, piece.stop_reason
    return choices
