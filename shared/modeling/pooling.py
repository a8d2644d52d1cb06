"""From one hidden state per token to one vector per sequence: mean, first token or last token, then unit length if asked.

Called with an encoder's output by `TextEncoder`. Sums in fp32 whatever the encoder's dtype; knows no model.
"""

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.ragged import RaggedBatch
from shared.modeling.recipe import Pooling


def pool(hidden: Tensor, batch: RaggedBatch, pooling: Pooling) -> Tensor:
    """One vector per sequence.

    Semantics: mean: sum(hidden[s]) / length[s];  cls: hidden[s][0];  last: hidden[s][-1].

    Args:
        hidden: [T, H] any float dtype.
    Returns:
        [S, H] float32.
    """
    if pooling == "cls":
        return hidden.index_select(0, batch.cu_lengths[:-1]).float()
    if pooling == "last":
        return hidden.index_select(0, batch.cu_lengths[1:] - 1).float()
    sums = hidden.new_zeros(batch.num_sequences, hidden.shape[1], dtype=torch.float32)
    sums.index_add_(0, batch.sequence_ids, hidden.float())
    return sums / batch.lengths[:, None]


def normalize(vectors: Tensor) -> Tensor:
    """Each row at unit length; a zero row stays zero.

    Semantics: v / max(‖v‖₂, 1e-12).
    """
    return functional.normalize(vectors, p=2.0, dim=1)
