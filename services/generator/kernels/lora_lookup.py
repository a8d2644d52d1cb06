"""LoRA of an embedding, the rank-r side: the input is one-hot, so that A x is a column of A.

Semantics:  h[t, r] = A[slot_t, r, id_t] for r below the slot's rank, else 0;  0 in rows at NO_ADAPTER.
Source:     LoRA, arXiv:2106.09685, §4.1.
Plain torch on every device: a few gathers of fixed size, so that a graph can hold them. The wide side is `lora_expand`.
"""

import torch
from torch import Tensor


def lora_lookup(h: Tensor, token_ids: Tensor, row_slots: Tensor, a: Tensor, ranks: Tensor) -> None:
    """Write the rank-r intermediate of every row.

    Args:
        h: [T, 1, R] fp32. Mutated.
        token_ids: [T] int32 or int64.
        row_slots: [T] int32, NO_ADAPTER for base rows and padding.
        a: [slots, 1, R, V].
        ranks: [slots, 1] int32; 0 where the adapter leaves the embedding alone.
    """
    slots = row_slots.clamp(min=0).long()
    columns = a[slots, 0, :, token_ids].float()  # [T, R]
    is_used = torch.arange(a.shape[2], device=h.device) < ranks[slots]
    h[:, 0] = torch.where(is_used & (row_slots >= 0)[:, None], columns, 0.0)
