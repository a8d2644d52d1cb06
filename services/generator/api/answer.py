"""Gathers the pieces of all choices for an answer that is not streamed.

Called by the completion and chat routes. Aborts what still runs when it is cancelled.
"""

from contextlib import aclosing
from dataclasses import dataclass

from services.generator.api.usage import UsageCounter
from services.generator.frontend.choices import Choices
from services.generator.metrics import GeneratorMetrics
from shared.contracts.generation import FinishReason
from shared.errors import InternalError


@dataclass(frozen=True, slots=True)
class WholeChoice:
    """One finished choice."""

    text: str
    finish_reason: FinishReason
    stop_reason: str | int | None


async def collect(choices: Choices, metrics: GeneratorMetrics, usage: UsageCounter) -> list[WholeChoice]:
    """Every choice in order of its index, once all have ended; their tokens are counted in `usage`."""
    texts: dict[int, list[str]] = {}
    ends: dict[int, WholeChoice] = {}
    try:
        async with aclosing(choices.pieces()) as pieces:
            async for index, piece in pieces:
                metrics.record(piece.num_tokens, piece.public_reason)
                texts.setdefault(index, []).append(piece.text)
                usage.add(index, piece)
                if piece.public_reason is not None:
                    text = "".join(texts[index])
                    ends[index] = WholeChoice(text, piece.public_reason, piece.stop_reason)
    finally:
        await choices.aclose()
    if len(ends) != choices.num_choices:
        raise InternalError("a choice ended without a reason; this is a bug")
    return [ends[index] for index in range(len(ends))]
