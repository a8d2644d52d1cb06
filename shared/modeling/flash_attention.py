"""Attention over flat tokens, sequence by sequence, without padding and without a mask: flash attention of variable length.

Used by the encoders on a GPU in half precision; elsewhere, and where a bias is added to the scores, they pad.
Source: FlashAttention-2, arXiv:2307.08691. The kernel is torch's own. Its operator is called directly: the public
`varlen_attn` changed its arguments between the versions of torch that are supported, the operator did not.
"""

import torch
from torch import Tensor

from shared.modeling.ragged import RaggedBatch

_HALF = (torch.float16, torch.bfloat16)
_MAX_HEAD_DIM = 256
_FIRST_CAPABILITY = (8, 0)


def can_flash(tensor: Tensor, head_dim: int) -> bool:
    """Whether there is a kernel for heads of this size, on the device and in the dtype of `tensor`."""
    return (
        tensor.is_cuda
        and tensor.dtype in _HALF
        and head_dim % 8 == 0
        and head_dim <= _MAX_HEAD_DIM
        and torch.cuda.get_device_capability(tensor.device) >= _FIRST_CAPABILITY
    )


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: RaggedBatch,
    *,
    is_causal: bool = False,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """Attention of every token to those of its sequence.

    Semantics: softmax(q kᵀ / sqrt(D)) v for each sequence and head, keys j of query i being those with
    i - window[0] <= j <= i + window[1], and j <= i where causal.

    Args:
        q: [T, Hq, D] float16 or bfloat16 on a GPU.
        k, v: [T, Hkv, D] likewise; query heads share them in equal groups. All contiguous on the last axis.
        window: places before and behind a token that it sees; None for all.
    Returns:
        [T, Hq * D].
    """
    before, behind = (None, None) if window is None else window
    attended: Tensor = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 - see the module's text
        q, k, v, batch.cu_lengths_int32, batch.cu_lengths_int32, batch.max_length, batch.max_length, 0.0, is_causal, False,
        window_size_left=before, window_size_right=behind,
    )[0]  # fmt: skip
    return attended.flatten(1)
