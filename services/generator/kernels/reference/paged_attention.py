"""Attention over a paged KV cache, in plain torch.

Semantics:  out[t] = softmax(q[t] · K[past of t] / √D + mask) · V[past of t], grouped heads sharing keys (arXiv:2305.13245).
Used by the runner on a CPU and as the oracle of the Triton kernels. Pure function of tensors; a fixed number of operations
whatever the number of rows.
"""

import torch
from torch import Tensor
from torch.nn import functional

from services.generator.layers.forward_batch import AttentionGroup


def paged_attention(query: Tensor, key_cache: Tensor, value_cache: Tensor, group: AttentionGroup) -> Tensor:
    """Attend with the queries of one group.

    Args:
        query: [T, Hq, D], the tokens of the group in order.
        key_cache: [slots, Hkv, D] of one layer; the group's own keys are written already.
        value_cache: likewise.
    Returns:
        [T, Hq * D].
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[1]
    keys = _gather(key_cache, group)  # [S, Hkv, K, D]
    values = _gather(value_cache, group)
    if group.query_index is None:
        packed = query.view(group.num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)  # [S, Hkv, G, D]
        return functional.scaled_dot_product_attention(packed, keys, values, group.mask).reshape(num_tokens, -1)
    assert group.token_index is not None
    padded = query[group.query_index].transpose(1, 2)  # [S, Hq, Q, D]
    out = functional.scaled_dot_product_attention(padded, keys, values, group.mask, enable_gqa=True)
    return out.transpose(1, 2).reshape(-1, num_heads * head_dim)[group.token_index]


def _gather(cache: Tensor, group: AttentionGroup) -> Tensor:
    rows = torch.index_select(cache, 0, group.kv_slots)
    return rows.view(group.num_rows, -1, *cache.shape[1:]).transpose(1, 2)
