"""Biases on attention scores by how far apart two tokens are, in buckets that widen with the distance.

Used by BERT-class encoders of the MPNet family. Source: T5, arXiv:1910.10683, §2.1, as MPNet uses it (arXiv:2004.09297).
"""

import math

import torch
from torch import Tensor

from shared.modeling.ragged import RaggedBatch

_MAX_DISTANCE = 128
NO_ATTENTION = float("-inf")


class RelativeBias:
    """A table of biases for every distance that a model can meet.

    Args:
        weight: [NUM_BUCKETS, Hq], a bias for each bucket and head.
        max_length: longest sequence in tokens.
    """

    NUM_BUCKETS = 32

    def __init__(self, weight: Tensor, max_length: int) -> None:
        distances = torch.arange(1 - max_length, max_length, device=weight.device)
        self._by_distance = weight[bucket(distances)].t().contiguous()  # [Hq, 2 max_length - 1]
        self._middle = max_length - 1

    def mask(self, batch: RaggedBatch) -> Tensor:
        """What attention adds to its scores: [S or 1, Hq, max_length, max_length], -inf where there is no token."""
        places = torch.arange(batch.max_length, device=self._by_distance.device)
        biases = self._by_distance[:, places[None, :] - places[:, None] + self._middle][None]
        return biases if batch.mask is None else biases.masked_fill(~batch.mask, NO_ATTENTION)


def bucket(distances: Tensor) -> Tensor:
    """The bucket of each distance, key place minus query place: 16 for those behind, 16 for those ahead.

    Half of each 16 hold one distance; the others widen logarithmically up to 128, beyond which all share the last.
    """
    half = RelativeBias.NUM_BUCKETS // 2
    num_exact = half // 2
    far = distances.abs()
    # Divided before it is multiplied, as in transformers: at powers of two one rounding decides the bucket.
    share = torch.log(far.clamp(min=1).float() / num_exact) / math.log(_MAX_DISTANCE / num_exact)
    widened = num_exact + (share * (half - num_exact)).long()
    side = torch.where(far < num_exact, far, widened.clamp(max=half - 1))
    return side + (distances > 0) * half
