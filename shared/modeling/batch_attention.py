"""Attention of an encoder that sees both ways, over one batch: by flash attention where there is a kernel, else padded.

Made once a batch by the encoders of BERT's and ModernBERT's kind, which know from their start which of the two it is, and called
by all their layers, which so share its mask.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.flash_attention import flash_attention
from shared.modeling.ragged import RaggedBatch

BatchAttention = Callable[[Tensor], Tensor]
"""Queries, keys and values side by side, [T, 3 * Hq * D], to [T, Hq * D]."""


def batch_attention(
    batch: RaggedBatch, num_heads: int, *, is_padded: bool, half_window: int | None = None
) -> BatchAttention:
    """Every token attends to those of its sequence, as far as a window goes.

    Args:
        is_padded: there is no kernel of flash attention, see `can_flash`.
        half_window: places to either side that a token sees; None for all.
    """
    if not is_padded:
        return FlashAttention(batch, num_heads, half_window)
    return PaddedAttention(batch, num_heads, batch.mask if half_window is None else window_mask(batch, half_window))


@dataclass(frozen=True)
class FlashAttention:
    """See `batch_attention`."""

    batch: RaggedBatch
    num_heads: int
    half_window: int | None

    def __call__(self, qkv: Tensor) -> Tensor:
        """See `BatchAttention`."""
        window = None if self.half_window is None else (self.half_window, self.half_window)
        q, k, v = qkv.view(len(qkv), 3, self.num_heads, -1).unbind(1)
        return flash_attention(q, k, v, self.batch, window=window)


@dataclass(frozen=True)
class PaddedAttention:
    """Sequence beside sequence.

    Attributes:
        mask: [S or 1, 1 or Hq, 1 or max_length, max_length], bool, true where a token is seen, or what is added to the scores,
            -inf where none is; None where all are.
    """

    batch: RaggedBatch
    num_heads: int
    mask: Tensor | None

    def __call__(self, qkv: Tensor) -> Tensor:
        """See `BatchAttention`."""
        padded = self.batch.pad(qkv).view(self.batch.num_sequences, self.batch.max_length, 3, self.num_heads, -1)
        q, k, v = padded.permute(2, 0, 3, 1, 4)  # [S, Hq, max_length, D] each
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return self.batch.unpad(attended.transpose(1, 2))


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
