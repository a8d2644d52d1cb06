"""The two things that cross between scheduler and runner: a StepPlan goes down, a StepResult comes up.

Structs of numpy arrays, so that the runner moves them to the device in a few copies and loops over no request.
A *row* is a sequence's place in the runner's state tables (block table, sampling parameters, last token), held while it runs.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.generator.core.images import PromptImage
from services.generator.core.request import MAX_BAD_WORD_TOKENS, SamplingParams

IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]

NUM_RECENT = MAX_BAD_WORD_TOKENS - 1
"""Tokens that are remembered of each row, for bad words."""

MASK_BITS = 32
"""Token ids in one word of a bit mask."""

ANY_TOKEN = -1
"""Stands in the tables of bad words for a place that any token fits."""

TOKEN_ON_DEVICE = -1
"""Stands in `StepPlan.token_ids` for the token that the row sampled last, which only the device knows yet."""

NUM_AXES = 3
"""Of rotary positions, where they have several: time, height and width."""


ROW_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
ROW_INTEGERS = ("top_k", "min_position", "num_stop_ids")
"""What `RowStates` has one of for each row, in the order of `floats` and of `integers`."""


@dataclass(frozen=True, slots=True)
class RowStates:
    """Sampling parameters of rows that begin in this step; filled by the scheduler.

    Lists of different length are padded to the longest of the step: ids by 0 with a value that does nothing.

    Attributes:
        rows: [A] the rows concerned.
        floats: [6, A] see ROW_FLOATS and `SamplingParams`.
        seeds: [A] of the draws; the host alone needs them.
        integers: [3, A] see ROW_INTEGERS; `min_position` is the first at which a stop id may be chosen.
        bias_ids, bias_values: [A, Kb].
        stop_ids: [A, Ks] of rows with `min_tokens`, which alone have a use for them.
        bad_prefixes, bad_lasts: [A, M, R] and [A, M]; ANY_TOKEN matches everything, a last id of ANY_TOKEN is no word.
        recent: [A, R] the last tokens before the first one that the row samples, oldest first; [0, R] where no row has bad words.
        allowed: [A, ceil(V / 32)] bit masks, or None where no row of the step has one.
        seen_rows, seen_ids, is_output: [H] tokens so far of the rows with penalties, and whether they were generated.
    """

    rows: IntArray
    floats: FloatArray
    seeds: LongArray
    integers: LongArray
    bias_ids: IntArray
    bias_values: FloatArray
    stop_ids: IntArray
    bad_prefixes: IntArray
    bad_lasts: IntArray
    recent: IntArray
    allowed: IntArray | None
    seen_rows: IntArray
    seen_ids: IntArray
    is_output: NDArray[np.bool_]


class SamplingFeatures(NamedTuple):
    """What the sampler has to do for one request or in one step, so that unused parts cost nothing.

    Attributes:
        num_logprobs: likeliest tokens to report for each row; None for nothing at all.
    """

    is_greedy: bool
    has_filters: bool
    has_penalties: bool
    has_bias: bool
    has_masks: bool
    has_bad_words: bool
    has_min_tokens: bool
    has_grammars: bool
    num_logprobs: int | None

    @property
    def changes_logits(self) -> bool:
        """Whether a token is not simply chosen from what the model says."""
        return self.has_penalties or self.has_bias or self.has_masks or self.has_bad_words or self.has_min_tokens


def features_of(params: SamplingParams) -> SamplingFeatures:
    """What one request needs; the same object for all that need the same."""
    return _features(
        is_greedy=params.temperature == 0,
        has_filters=params.has_filters,
        has_penalties=params.has_penalties,
        has_bias=bool(params.logit_bias),
        has_masks=params.allowed_token_ids is not None,
        has_bad_words=bool(params.bad_words),
        has_min_tokens=params.min_tokens > 0,
        has_grammars=params.grammar is not None,
        num_logprobs=params.logprobs,
    )


_features = functools.cache(SamplingFeatures)


@dataclass(frozen=True, slots=True)
class BlockUpdates:
    """New entries of the block table: `table[rows[i], columns[i]] = block_ids[i]`; filled by the scheduler. All are [U]."""

    rows: IntArray
    columns: IntArray
    block_ids: IntArray


class AdapterCopy(NamedTuple):
    """Before the forward pass, copy an adapter's version from host memory into a slot of the bank."""

    slot: int
    version_id: int


class ImageEncode(NamedTuple):
    """Before the forward pass, encode an image into these rows [num_rows] of the encoder's cache."""

    image: PromptImage
    rows: IntArray


@dataclass(frozen=True, slots=True)
class ImageWork:
    """What a step does with images.

    Attributes:
        encodes: all at once, before any row is read.
        tokens: [I] indices into `StepPlan.token_ids` of placeholders, whose embeddings give way to
        rows: [I] these rows of the encoder's cache.
    """

    encodes: list[ImageEncode]
    tokens: IntArray
    rows: IntArray


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What to run in one step; filled by the scheduler, obeyed by the runner.

        tokens of the step:  | decode rows, one token each | prefill row a: tokens … | prefill row b: tokens … |

    Attributes:
        step_id: counts up from 0.
        rows: [S] state row of each scheduled sequence; the first `num_decodes` have one token each, the others follow by length.
        num_new_tokens: [S] tokens to compute.
        num_computed_tokens: [S] positions whose KV is there already; the new tokens start here.
        token_ids: [T] ids of the new tokens in order of `rows`, or TOKEN_ON_DEVICE.
        sampled: [N] indices into `rows` of the sequences that sample a token at their last position.
        features: what the sampler has to do.
        scored: [M] indices into `token_ids` of prompt tokens whose successor's log-probability is wanted.
        scored_ids: [M] those successors.
        num_prompt_logprobs: likeliest tokens to report for each of them.
        adapter_slots: [S] slot of each row's adapter, NO_ADAPTER for the base model.
        adapter_copies: what the bank's slots must hold besides what they held.
        images: None where no token of the step belongs to one.
        rope_positions: [3, T] where each token stands in time, height and width; None where that is its position in all.
    """

    step_id: int
    rows: IntArray
    num_decodes: int
    num_new_tokens: IntArray
    num_computed_tokens: IntArray
    token_ids: IntArray
    sampled: IntArray
    new_rows: RowStates
    block_updates: BlockUpdates
    features: SamplingFeatures
    scored: IntArray
    scored_ids: IntArray
    num_prompt_logprobs: int
    adapter_slots: IntArray
    adapter_copies: list[AdapterCopy]
    images: ImageWork | None = None
    rope_positions: IntArray | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens in the step, over all rows."""
        return len(self.token_ids)

    @property
    def sampled_rows(self) -> IntArray:
        """[N] state row of each sequence that samples."""
        return self.rows[self.sampled]

    @property
    def sampled_positions(self) -> IntArray:
        """[N] of the tokens that they sample."""
        return (self.num_computed_tokens + self.num_new_tokens)[self.sampled]

    @property
    def is_decode(self) -> bool:
        """Whether all rows are decode rows."""
        return self.num_decodes == len(self.rows)


@dataclass(frozen=True, slots=True)
class LogprobArrays:
    """Log-probabilities under the model itself, before temperature, penalties and masks.

    Attributes:
        chosen: [N] of the tokens in question.
        top_ids, top: [N, k] the likeliest tokens and theirs, likeliest first.
    """

    chosen: FloatArray
    top_ids: IntArray
    top: FloatArray


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came out of a step; filled by the runner.

    Attributes:
        step_id: of the plan.
        token_ids: [N] the sampled ids, in order of the plan's `sampled`.
        logprobs: of the sampled ids, where the plan asked for them.
        prompt_logprobs: of the plan's `scored_ids`, where there are any.
    """

    step_id: int
    token_ids: IntArray
    logprobs: LogprobArrays | None = None
    prompt_logprobs: LogprobArrays | None = None
