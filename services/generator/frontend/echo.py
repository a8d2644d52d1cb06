"""Puts the prompt in front of each choice, as `echo` of the completions endpoint asks.

Called by the completions route. Works on pieces, so that whole answers and streams are the same; knows no wire shapes.
"""

from collections.abc import Sequence
from contextlib import aclosing

from msgspec.structs import replace

from services.generator.core.messages import TokenLogprob
from services.generator.core.request import FinishReason
from services.generator.frontend.generation import Pieces, ScoredToken, TextPiece
from shared.text.tokenizer import Tokenizer


class Echo:
    """The prompts of one request.

    Args:
        num_choices: answers to each prompt; choice `i` answers prompt `i // num_choices`.
        is_alone: nothing is generated: the engine's one token is dropped, the prompt is all of the answer.
        is_scored: log-probabilities are wanted.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompts: Sequence[list[int]], num_choices: int, *, is_alone: bool, is_scored: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._texts = [tokenizer.decode(prompt) for prompt in prompts]
        self._num_choices = num_choices
        self._is_alone = is_alone
        self._is_scored = is_scored

    async def over(self, pieces: Pieces) -> Pieces:
        """`pieces` with the prompt in the first of each choice."""
        begun: set[int] = set()
        logprobs: dict[int, list[TokenLogprob]] = {}
        async with aclosing(pieces):
            async for index, piece in pieces:
                logprobs.setdefault(index, []).extend(piece.prompt_logprobs)
                number = index // self._num_choices
                if self._is_alone and piece.finish_reason is None:
                    continue
                if index in begun:
                    yield index, self._shifted(number, piece)
                else:
                    begun.add(index)
                    yield index, self._with_prompt(number, replace(piece, prompt_logprobs=logprobs[index]))

    def _with_prompt(self, number: int, piece: TextPiece) -> TextPiece:
        text = self._texts[number]
        tokens = self._prompt_tokens(self._prompts[number], piece.prompt_logprobs) if self._is_scored else []
        if self._is_alone:
            return TextPiece(text, [], FinishReason.LENGTH, num_cached_tokens=piece.num_cached_tokens, tokens=tokens)
        shifted = self._shifted(number, piece)
        return replace(shifted, text=text + piece.text, tokens=tokens + shifted.tokens)

    def _shifted(self, number: int, piece: TextPiece) -> TextPiece:
        width = len(self._texts[number])
        return replace(piece, tokens=[replace(t, text_offset=width + t.text_offset) for t in piece.tokens])

    def _prompt_tokens(self, prompt: list[int], logprobs: list[TokenLogprob]) -> list[ScoredToken]:
        """The prompt's tokens, the first without a log-probability."""
        offsets = _text_offsets(self._tokenizer, prompt)
        values: list[TokenLogprob | None] = [None, *logprobs]
        return [ScoredToken(*item) for item in zip(prompt, values, offsets, strict=True)]


def _text_offsets(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    """Where the text of each token begins; a token that only completes a character begins where that character does."""
    offsets, num_chars = [], 0
    data = b""
    for token_id in token_ids:
        offsets.append(num_chars)
        data += tokenizer.token_bytes(token_id)
        whole = data.decode("utf-8", "ignore")
        if whole.encode() == data:
            num_chars += len(whole)
            data = b""
    return offsets
