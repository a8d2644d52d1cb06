"""Attention of an encoder that sees both ways, over one batch: by flash attention where there is a kernel, else padded.

Made once a batch by the encoders of BERT's and ModernBERT's kind and called by all their layers, which so share its mask.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.flash_attention import can_flash, flash_attention
from shared.modeling.ragged import RaggedBatch


@dataclass(frozen=True)
class BatchAttention:
    """Every token attends to those of its sequence, as far as a window goes.

    Attributes:
        half_window: places to either side that a token sees; None for all.
        bias: added to the scores, [S or 1, Hq, max_length, max_length], -inf where there is no token; needs no window.
    """

    batch: RaggedBatch
    num_heads: int
    half_window: int | None = None
    bias: Tensor | None = None

    def __call__(self, qkv: Tensor) -> Tensor:
        """Queries, keys and values side by side, [T, 3 * Hq * D], to [T, Hq * D]."""
        heads = qkv.view(len(qkv), 3, self.num_heads, -1)
        if self.bias is None and can_flash(qkv, heads.shape[-1]):
            window = None if self.half_window is None else (self.half_window, self.half_window)
            q, k, v = heads.unbind(1)
            return flash_attention(q, k, v, self.batch, window=window)
        padded = self.batch.pad(qkv).view(self.batch.num_sequences, self.batch.max_length, *heads.shape[1:])
        q, k, v = padded.permute(2, 0, 3, 1, 4)  # [S, Hq, max_length, D] each
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=self._mask)
        return self.batch.unpad(attended.transpose(1, 2))

    @cached_property
    def _mask(self) -> Tensor | None:
        if self.bias is not None:
            return self.bias
        return self.batch.mask if self.half_window is None else window_mask(self.batch, self.half_window)


def window_mask(batch: RaggedBatch, half_window: int) -> Tensor | None:
    """`batch.mask` narrowed to tokens at most `half_window` places away on either side.

    Semantics: mask[s, 0, i, j] = |i - j| <= half_window and j < length[s].

    Returns:
        [S or 1, 1, max_length, max_length] bool; `batch.mask` itself where the window hides nothing.
    """
    if batch.max_length - 1 <= half_window:
        return batch.mask
    places = torch.arange(batch.max_length, device=batch.token_ids.device)
    is_near = ((places[:, None] - places[None, :]).abs() <= half_window)[None, None]
    return is_near if batch.mask is None else is_near & batch.mask
