"""From one hidden state per token to one vector per sequence, then unit length if asked.

Called with an encoder's output by `TextEncoder`. Sums in fp32 whatever the encoder's dtype; knows no model.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.ragged import RaggedBatch
from shared.modeling.vector_modules import Pooling


def pool(hidden: Tensor, batch: RaggedBatch, kinds: Sequence[Pooling]) -> Tensor:
    """One vector per sequence; those of several kinds stand side by side.

    Semantics, with h the [length, H] states of one sequence: cls: h[0];  last: h[-1];  max: max over tokens;
    mean: Σ h[i] / length;  mean_sqrt_len: Σ h[i] / sqrt(length);  weightedmean: Σ (i + 1) h[i] / Σ (i + 1).

    Args:
        hidden: [T, H] any float dtype.
    Returns:
        [S, H · len(kinds)] float32.
    """
    vectors = [_KINDS[kind](hidden, batch) for kind in kinds]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)


def normalize(vectors: Tensor) -> Tensor:
    """Each row at unit length; a zero row stays zero.

    Semantics: v / max(‖v‖₂, 1e-12).
    """
    return functional.normalize(vectors, p=2.0, dim=1)


def _first(hidden: Tensor, batch: RaggedBatch) -> Tensor:
    return hidden.index_select(0, batch.cu_lengths[:-1]).float()


def _last(hidden: Tensor, batch: RaggedBatch) -> Tensor:
    return hidden.index_select(0, batch.cu_lengths[1:] - 1).float()


def _largest(hidden: Tensor, batch: RaggedBatch) -> Tensor:
    padded = batch.pad(hidden.float())  # [S, max_length, H]
    if batch.mask is not None:
        padded.masked_fill_(~batch.mask[:, 0, 0, :, None], float("-inf"))
    return padded.amax(dim=1)


def _sums(weighted: Tensor, batch: RaggedBatch) -> Tensor:
    """[T, H] float32 to [S, H], sequence by sequence: a difference of running sums would lose what is small."""
    if weighted.is_cuda:  # `index_add_` there adds in any order, so that a vector would not come out the same twice
        return torch.segment_reduce(weighted, "sum", offsets=batch.cu_lengths, axis=0, unsafe=True)
    sums = weighted.new_zeros(batch.num_sequences, weighted.shape[1])
    return sums.index_add_(0, batch.sequence_ids, weighted)


def _mean(hidden: Tensor, batch: RaggedBatch) -> Tensor:
    return _sums(hidden.float(), batch) / batch.lengths[:, None]


def _mean_sqrt_len(hidden: Tensor, batch: RaggedBatch) -> Tensor:
    return _sums(hidden.float(), batch) / batch.lengths[:, None].sqrt()


def _weighted_mean(hidden: Tensor, batch: RaggedBatch) -> Tensor:
    weights = (batch.positions + 1).float()[:, None]
    sums_of_weights = (batch.lengths * (batch.lengths + 1) / 2)[:, None]
    return _sums(hidden.float() * weights, batch) / sums_of_weights


_KINDS: Mapping[Pooling, Callable[[Tensor, RaggedBatch], Tensor]] = {
    "cls": _first,
    "last": _last,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
}
