"""Turns the sampling fields of a request into the engine's parameters.

Called by the API routes. The only place where defaults and special values of the public fields get their meaning, and where
ids and words are checked against the vocabulary.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import structs

from services.generator.core.request import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
)
from services.generator.frontend.model_card import ModelCard
from shared.contracts.generation import GenerationFields
from shared.errors import InvalidRequestError
from shared.text.tokenizer import Tokenizer

GREEDY_BELOW = 1e-5
"""Temperatures below this are taken as 0: dividing by them would overflow and the likeliest token wins anyway."""
_INT64 = 2**63
Number = TypeVar("Number", int, float)


class SamplingReader:
    """Reads sampling fields for one model.

    Args:
        card: vocabulary and end tokens of the model.
        defaults: the model's own values for what a request leaves out.
    """

    def __init__(self, tokenizer: Tokenizer, card: ModelCard, defaults: GenerationFields | None = None) -> None:
        self.defaults = defaults or GenerationFields()
        self._tokenizer = tokenizer
        self._vocab_size = card.vocab_size
        self._eos_token_ids = card.eos_token_ids

    def read(self, fields: GenerationFields, *, scores_prompt: bool, grammar: str | None = None) -> SamplingParams:
        """Parameters of the request but for its output limit, which depends on the prompt; see `choices_of`.

        Args:
            scores_prompt: whether log-probabilities of the prompt are wanted too.
            grammar: what the answer must match, see `frontend.structured`.
        Raises:
            InvalidRequestError: an id is not in the vocabulary, a list is too long or nothing could be chosen; names the field.
        """
        limit = fields.output_limit()[1]
        if limit is not None and (fields.min_tokens or 0) > max(1, limit):
            raise InvalidRequestError("min_tokens: is more than the most tokens asked for", param="min_tokens")
        temperature = self._value_of("temperature", fields, 1.0)
        stop_ids = self.stop_token_ids(fields) | (frozenset() if fields.ignore_eos else self._eos_token_ids)
        _check_length("stop_token_ids", stop_ids, MAX_STOP_TOKEN_IDS)
        allowed = self._allowed(fields)
        if allowed is not None and fields.min_tokens and stop_ids.issuperset(allowed):
            raise InvalidRequestError("min_tokens: all allowed tokens end the request", param="min_tokens")
        return SamplingParams(
            max_tokens=0,
            temperature=0.0 if temperature < GREEDY_BELOW else temperature,
            top_p=self._value_of("top_p", fields, 1.0),
            top_k=max(0, self._value_of("top_k", fields, 0)),
            min_p=self._value_of("min_p", fields, 0.0),
            seed=secrets.randbits(62) if fields.seed is None else fields.seed,
            repetition_penalty=self._value_of("repetition_penalty", fields, 1.0),
            presence_penalty=fields.presence_penalty or 0.0,
            frequency_penalty=fields.frequency_penalty or 0.0,
            logit_bias=self._logit_bias(fields),
            allowed_token_ids=allowed,
            bad_words=self._bad_words(fields),
            stop_token_ids=stop_ids,
            min_tokens=fields.min_tokens or 0,
            logprobs=fields.num_logprobs(),
            prompt_logprobs=fields.num_logprobs() if scores_prompt else None,
            grammar=grammar,
        )

    def stop_token_ids(self, fields: GenerationFields) -> frozenset[int]:
        """The request's own stop ids, and those of stop strings that are special tokens: these never show in the text."""
        ids = self._known("stop_token_ids", fields.stop_token_ids or [])
        special = (self._tokenizer.token_to_id(stop) for stop in stop_strings(fields))
        return frozenset(ids) | {token_id for token_id in special if token_id in self._tokenizer.special_ids}

    def _value_of(self, name: str, fields: GenerationFields, plain: Number) -> Number:
        """What the request says, else the model, else `plain`."""
        given: list[Number | None] = [getattr(fields, name), getattr(self.defaults, name)]
        return next((value for value in given if value is not None), plain)

    def _logit_bias(self, fields: GenerationFields) -> dict[int, float]:
        bias = fields.logit_bias or {}
        ids = self._known("logit_bias", [int(key) for key in bias])
        return dict(zip(ids, bias.values(), strict=True))

    def _allowed(self, fields: GenerationFields) -> list[int] | None:
        ids = fields.allowed_token_ids
        return None if ids is None else sorted(set(self._known("allowed_token_ids", ids)))

    def _bad_words(self, fields: GenerationFields) -> list[list[int]]:
        """Each word as it is written at the start of a text and after a space."""
        words: list[list[int]] = []
        for word in fields.bad_words or []:
            for spelling in dict.fromkeys((word, " " + word.lstrip())):
                ids = self._tokenizer.encode(spelling, add_special_tokens=False)
                _check_length("bad_words", ids, MAX_BAD_WORD_TOKENS, "tokens in a word")
                words.append(ids)
        _check_length("bad_words", words, MAX_BAD_WORDS)
        return words

    def _known(self, param: str, ids: Iterable[int]) -> list[int]:
        ids = list(ids)
        vocab_size = self._vocab_size
        bad = [token_id for token_id in ids if token_id >= vocab_size]
        if bad:
            raise InvalidRequestError(
                f"{param}: token ids {bad[:8]} are not in the vocabulary of {vocab_size}", param=param
            )
        return ids


def choices_of(params: SamplingParams, max_tokens: int, num_choices: int) -> list[SamplingParams]:
    """Parameters of the choices of one prompt; choice i draws with seed + i, which wraps around like int64."""
    seeds = ((params.seed + index + _INT64) % (2 * _INT64) - _INT64 for index in range(num_choices))
    limit = {"max_tokens": max_tokens, "min_tokens": min(params.min_tokens, max_tokens)}
    return [structs.replace(params, seed=seed, **limit) for seed in seeds]


def stop_strings(fields: GenerationFields) -> Sequence[str]:
    """The request's stop strings as a list."""
    if fields.stop is None:
        return []
    return [fields.stop] if isinstance(fields.stop, str) else fields.stop


def _check_length(param: str, items: Sequence[object] | frozenset[int], limit: int, what: str = "entries") -> None:
    if len(items) > limit:
        raise InvalidRequestError(f"{param}: at most {limit} {what}, {len(items)} given", param=param)
