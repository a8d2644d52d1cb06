"""Logits to token ids, on the device, for all rows at once; per-row parameters are tensors.

Called by the ModelRunner after the forward pass. A draw depends on (seed, position) only, never on what else is in the batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.generator.core.plan import IntArray, LogprobArrays, RowStates, SamplingFeatures
from services.generator.layers.backends import LayerKernels
from services.generator.runner.logits import add_bias, add_penalties, mask_allowed, mask_bad_words, mask_early_stops
from services.generator.runner.random import uniform
from services.generator.runner.sampling_tables import SamplingTables
from shared.modeling.transfers import HostCopy


@dataclass(frozen=True, slots=True)
class Logprobs:
    """`LogprobArrays` on the device: chosen [N], top_ids [N, k], top [N, k]."""

    chosen: Tensor
    top_ids: Tensor
    top: Tensor


class LogprobsCopy:
    """Log-probabilities on their way to the host."""

    def __init__(self, logprobs: Logprobs) -> None:
        self._copies = [HostCopy(t) for t in (logprobs.chosen, logprobs.top_ids.to(torch.int32), logprobs.top)]

    def wait(self) -> LogprobArrays:
        """The values, once they are there."""
        return LogprobArrays(*(copy.wait() for copy in self._copies))


class Sampler:
    """Owns the sampling parameters of all rows."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device, kernels: LayerKernels) -> None:
        self._kernels = kernels
        self._seeds = np.zeros(max_num_seqs, np.int64)
        self._tables = SamplingTables(max_num_seqs, vocab_size, device)

    def begin_rows(self, new: RowStates) -> None:
        """Take the parameters of rows that begin."""
        self._seeds[new.rows] = new.seeds
        self._tables.apply(new)

    def uniforms(self, rows: IntArray, positions: IntArray) -> NDArray[np.float64]:
        """[N] in [0, 1), what each row draws its token at that position with; on the host."""
        return uniform(self._seeds[rows], positions)

    def __call__(
        self,
        logits: Tensor,
        features: SamplingFeatures,
        rows: Tensor,
        positions: Tensor,
        *,
        uniforms: Tensor | None = None,
        masks: Tensor | None = None,
    ) -> Tensor:
        """One token for each row.

        Args:
            logits: [N, V] in the model's dtype.
            features: what the rows need, their union.
            rows: [N] int64, state row of each.
            positions: [N] int64, of the tokens to choose.
            uniforms: [N] fp64, see the method; None where all rows are greedy.
            masks: [N, ceil(V / 32)] int32, the ids that grammars allow; None where no row has one.
        Returns:
            [N] int64.
        Raises:
            ValueError: `uniforms` are there for greedy rows, or missing for others.
        """
        if (uniforms is None) != features.is_greedy:
            raise ValueError("uniform numbers are for rows that draw, and all that draw need them")
        tables = self._tables
        if features.changes_logits or masks is not None:
            logits = logits.float()
        if masks is not None:
            logits = mask_allowed(logits, masks)  # before the rest, so that the way out below leads to no other id
        changed = self._change(logits, features, rows, positions)
        if changed is not logits:
            # Where the constraints of a request leave nothing, the model's own choice is better than token 0.
            has_any = (changed > float("-inf")).any(dim=-1, keepdim=True)
            logits = torch.where(has_any, changed, logits)
        if uniforms is None:
            token_ids = self._kernels.argmax(logits)
        else:
            filters = (tables.top_k[rows], tables.top_p[rows], tables.min_p[rows]) if features.has_filters else None
            token_ids = self._kernels.sample(logits, tables.temperature[rows], filters, uniforms)
        if features.has_penalties:
            tables.note_sampled(rows, token_ids)
        if features.has_bad_words:
            tables.shift_recent(rows, token_ids)
        return token_ids

    def _change(self, logits: Tensor, features: SamplingFeatures, rows: Tensor, positions: Tensor) -> Tensor:
        tables = self._tables
        if features.has_penalties:
            logits = add_penalties(logits, tables, rows)
        if features.has_bias:
            logits = add_bias(logits, tables, rows)
        if features.has_masks:
            logits = mask_allowed(logits, tables.allowed[rows])
        if features.has_bad_words:
            logits = mask_bad_words(logits, tables, rows)
        if features.has_min_tokens:
            logits = mask_early_stops(logits, tables, rows, positions)
        return logits


def logprobs_of(logits: Tensor, token_ids: Tensor, num_top: int) -> Logprobs:
    """Log-probabilities under the model itself of `token_ids` [N] and of the `num_top` likeliest tokens.

    Args:
        logits: [N, V], as they came from the model.
    """
    logits = logits.float()
    # torch's log_softmax adds up the vocabulary in an order that costs a digit; over a long text the errors of its tokens add up.
    logprobs = logits - logits.logsumexp(dim=-1, keepdim=True)
    top, top_ids = logprobs.topk(num_top, dim=-1)
    return Logprobs(logprobs.gather(1, token_ids[:, None])[:, 0], top_ids, top)
