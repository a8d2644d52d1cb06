"""What the encoders have in common: norm, activations, projections with or without bias, attention over a ragged batch.

Used by the modules of the encoder families. Layers get everything as arguments; what a whole step shares is made by its caller.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.ragged import RaggedBatch

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class LayerNorm:
    """Normalisation over the last axis; `bias` is None where the family has none."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def split_heads(qkv: Tensor, batch: RaggedBatch, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values side by side, [T, 3 * Hq * D], as three times [S, Hq, max_length, D]."""
    padded = batch.pad(qkv)  # [S, max_length, 3 * Hq * D]
    heads = padded.view(*padded.shape[:2], 3, num_heads, -1)
    q, k, v = heads.permute(2, 0, 3, 1, 4)
    return q, k, v


def attend(qkv: Tensor, batch: RaggedBatch, num_heads: int, mask: Tensor | None) -> Tensor:
    """Attention of every token to those of its sequence that `mask` leaves.

    Args:
        qkv: [T, 3 * Hq * D].
        mask: bool or additive, spreads to [S, Hq, max_length, max_length]; None where all may see all.
    Returns:
        [T, Hq * D].
    """
    q, k, v = split_heads(qkv, batch, num_heads)
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return batch.unpad(attended.transpose(1, 2))


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
