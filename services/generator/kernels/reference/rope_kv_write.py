"""Head norm, rotation and write to the paged cache, in plain torch.

Semantics:  see the Triton kernel `rope_kv_write`, whose oracle this is.
Source:     RoFormer, arXiv:2104.09864, §3.4.2, half-split layout; head norms: Qwen3 Technical Report, arXiv:2505.09388, §2.
"""

import torch
from torch import Tensor

from services.generator.kernels.reference.rms_norm import rms_norm


def rope_kv_write(
    rotated: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    qkv: Tensor,
    table_rows: Tensor | None,
    slot_mapping: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Fill `rotated` and the tokens' slots of both caches; arguments as the kernel's, computed in `qkv`'s dtype."""
    num_kv_heads, head_dim = key_cache.shape[1:]
    num_heads = rotated.shape[1] - num_kv_heads
    heads = qkv.view(len(qkv), -1, head_dim)
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q = rms_norm(q.reshape(-1, head_dim), q_norm, eps)[0].view(q.shape)
        k = rms_norm(k.reshape(-1, head_dim), k_norm, eps)[0].view(k.shape)
    if table_rows is not None:
        q, k = _rotate(q, table_rows), _rotate(k, table_rows)
    rotated.copy_(torch.cat([q, k], dim=1))
    is_token = slot_mapping >= 0
    key_cache[slot_mapping[is_token]] = k[is_token].to(key_cache.dtype)
    value_cache[slot_mapping[is_token]] = v[is_token].to(value_cache.dtype)


def _rotate(heads: Tensor, table_rows: Tensor) -> Tensor:
    cos, sin = table_rows.to(heads.dtype)[:, None].chunk(2, dim=-1)
    a, b = heads.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
