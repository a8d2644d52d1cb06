"""The two things that cross between scheduler and runner: a StepPlan goes down, a StepResult comes up.

Structs of numpy arrays, so that the runner moves them to the device in a few copies and loops over no request.
A *row* is a sequence's place in the runner's state tables (block table, sampling parameters, last token), held while it runs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]

TOKEN_ON_DEVICE = -1
"""Stands in `StepPlan.token_ids` for the token that the row sampled last, which only the device knows yet."""


@dataclass(frozen=True, slots=True)
class RowStates:
    """Sampling parameters of rows that begin in this step; filled by the scheduler. All arrays are [A].

    Attributes:
        rows: the rows concerned.
    """

    rows: IntArray
    temperature: FloatArray
    top_p: FloatArray
    top_k: IntArray
    seed: LongArray


@dataclass(frozen=True, slots=True)
class BlockUpdates:
    """New entries of the block table: `table[rows[i], columns[i]] = block_ids[i]`; filled by the scheduler. All are [U]."""

    rows: IntArray
    columns: IntArray
    block_ids: IntArray


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
        is_greedy: no row of the step needs a random draw.
        has_filters: some row of the step uses top_k or top_p.
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
    is_greedy: bool
    has_filters: bool

    @property
    def num_tokens(self) -> int:
        """Tokens in the step, over all rows."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came out of a step; filled by the runner.

    Attributes:
        step_id: of the plan.
        token_ids: [N] the sampled ids, in order of the plan's `sampled`.
    """

    step_id: int
    token_ids: IntArray
