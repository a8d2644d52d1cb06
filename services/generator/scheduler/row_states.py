"""Packs the sampling parameters of sequences that begin a row into arrays, and says what a step's sampler has to do.

Used by the PlanBuilder. The only place that knows how lists of parameters become tables.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import Any

import numpy as np

from services.generator.core.plan import (
    ANY_TOKEN,
    MASK_BITS,
    NUM_RECENT,
    ROW_FLOATS,
    IntArray,
    LongArray,
    RowStates,
    SamplingFeatures,
)
from services.generator.core.request import SamplingParams
from services.generator.core.sequence import Sequence


def union(features: Iterable[SamplingFeatures]) -> SamplingFeatures:
    """What a step has to do that does all of `features`."""
    # Those alike are one object, see `features_of`: to go by that costs less than to hash them all.
    kinds = {id(kind): kind for kind in features}.values()
    return SamplingFeatures(
        is_greedy=all(kind.is_greedy for kind in kinds),
        has_filters=any(kind.has_filters for kind in kinds),
        has_penalties=any(kind.has_penalties for kind in kinds),
        has_bias=any(kind.has_bias for kind in kinds),
        has_masks=any(kind.has_masks for kind in kinds),
        has_bad_words=any(kind.has_bad_words for kind in kinds),
        has_min_tokens=any(kind.has_min_tokens for kind in kinds),
        has_grammars=any(kind.has_grammars for kind in kinds),
        num_logprobs=max((kind.num_logprobs for kind in kinds if kind.num_logprobs is not None), default=None),
    )


def row_states(sequences: Rows[Sequence], rows: IntArray, vocab_size: int) -> RowStates:
    """Parameters of `sequences`, which begin the rows `rows`."""
    return _pack(sequences, rows, vocab_size) if sequences else _NONE


def _pack(sequences: Rows[Sequence], rows: IntArray, vocab_size: int) -> RowStates:
    sampling = [sequence.request.sampling for sequence in sequences]
    seen = [(index, sequence) for index, sequence in enumerate(sequences) if sampling[index].has_penalties]
    lengths = [sequence.num_known_tokens for _, sequence in seen]
    stop_ids = [sorted(params.stop_token_ids) if params.min_tokens else [] for params in sampling]
    has_bad_words = any(params.bad_words for params in sampling)
    return RowStates(
        rows=rows,
        floats=np.array([[getattr(params, name) for params in sampling] for name in ROW_FLOATS], np.float32),
        seeds=np.array([params.seed for params in sampling], np.int64),
        integers=_integers(sequences, stop_ids),
        bias_ids=_padded([list(params.logit_bias) for params in sampling], 0, np.int32),
        bias_values=_padded([list(params.logit_bias.values()) for params in sampling], 0, np.float32),
        stop_ids=_padded(stop_ids, 0, np.int32),
        bad_prefixes=_bad_prefixes(sampling),
        bad_lasts=_padded([[word[-1] for word in params.bad_words] for params in sampling], ANY_TOKEN, np.int32),
        recent=np.array([_recent(s) for s in sequences if has_bad_words], np.int32).reshape(-1, NUM_RECENT),
        allowed=_allowed(sampling, vocab_size),
        seen_rows=np.repeat(rows[[index for index, _ in seen]], lengths),
        seen_ids=np.array([t for _, s in seen for t in s.known_tokens(0, s.num_known_tokens)], np.int32),
        is_output=np.array([p >= s.num_prompt_tokens for _, s in seen for p in range(s.num_known_tokens)], np.bool_),
    )


def _integers(sequences: Rows[Sequence], stop_ids: Rows[list[int]]) -> LongArray:
    """In the order of ROW_INTEGERS."""
    sampling = [sequence.request.sampling for sequence in sequences]
    top_k = [params.top_k for params in sampling]
    min_position = [s.num_prompt_tokens + s.request.sampling.min_tokens for s in sequences]
    return np.array([top_k, min_position, list(map(len, stop_ids))], np.int64)


def _padded(lists: Rows[Rows[float]], filler: float, dtype: Any) -> Any:
    table = np.full((len(lists), max(map(len, lists), default=0)), filler, dtype)
    for index, values in enumerate(lists):
        table[index, : len(values)] = values
    return table


def _bad_prefixes(sampling: Rows[SamplingParams]) -> IntArray:
    """What has to stand before the last token of each bad word, right-aligned."""
    table = np.full(
        (len(sampling), max((len(p.bad_words) for p in sampling), default=0), NUM_RECENT), ANY_TOKEN, np.int32
    )
    for index, params in enumerate(sampling):
        for number, word in enumerate(params.bad_words):
            if len(word) > 1:
                table[index, number, 1 - len(word) :] = word[:-1]
    return table


def _recent(sequence: Sequence) -> list[int]:
    end = sequence.num_known_tokens
    known = sequence.known_tokens(max(0, end - NUM_RECENT), end)
    return [ANY_TOKEN] * (NUM_RECENT - len(known)) + known


def _allowed(sampling: Rows[SamplingParams], vocab_size: int) -> IntArray | None:
    if all(params.allowed_token_ids is None for params in sampling):
        return None
    bits = np.zeros((len(sampling), -(-vocab_size // MASK_BITS) * MASK_BITS), np.uint8)
    for index, params in enumerate(sampling):
        bits[index, slice(None) if params.allowed_token_ids is None else params.allowed_token_ids] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


_NONE = _pack([], np.array([], np.int32), vocab_size=0)
"""Of a step in which no row begins, as most are."""
