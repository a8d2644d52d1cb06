"""Attention over a paged KV cache, in plain torch.

Semantics:  out[t] = softmax(q[t] · K[past of t] / √D + mask) · V[past of t], grouped heads sharing keys (arXiv:2305.13245).
Used on a CPU and as the oracle of the Triton kernels. Pure function of tensors, with a fixed number of operations whatever the
number of rows.
"""

from torch import Tensor
from torch.nn import functional


def paged_attention_decode(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, kv_slots: Tensor, mask: Tensor
) -> Tensor:
    """One query per row; the query heads that share a key head are one tile.

    Args:
        query: [S, Hq, D].
        key_cache: [slots, Hkv, D] of one layer; the rows' own keys are written already.
        value_cache: likewise.
        kv_slots: [S * K] int64, slot of every key, row by row.
        mask: [S, 1, 1, K] in the dtype of `query`, 0 or -inf, added to the scores.
    Returns:
        [S, Hq * D].
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[1]
    packed = query.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)  # [S, Hkv, G, D]
    keys, values = (_gather(cache, kv_slots, num_rows) for cache in (key_cache, value_cache))
    return functional.scaled_dot_product_attention(packed, keys, values, mask).reshape(num_rows, -1)


def paged_attention_prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_slots: Tensor,
    mask: Tensor,
    query_index: Tensor,
    token_index: Tensor,
) -> Tensor:
    """Several queries per row, padded to the longest row.

    Args:
        query: [T, Hq, D].
        key_cache: [slots, Hkv, D] of one layer; the rows' own keys are written already.
        value_cache: likewise.
        kv_slots: [S * K] int64, slot of every key, row by row.
        mask: [S, 1, Q, K] in the dtype of `query`, 0 or -inf, added to the scores.
        query_index: [S, Q] int64, token of each padded query.
        token_index: [T] int64, padded query of each token.
    Returns:
        [T, Hq * D].
    """
    num_heads, head_dim = query.shape[1:]
    keys, values = (_gather(cache, kv_slots, len(query_index)) for cache in (key_cache, value_cache))
    padded = query[query_index].transpose(1, 2)  # [S, Hq, Q, D]
    out = functional.scaled_dot_product_attention(padded, keys, values, mask, enable_gqa=True)
    return out.transpose(1, 2).reshape(-1, num_heads * head_dim)[token_index]


def _gather(cache: Tensor, slots: Tensor, num_rows: int) -> Tensor:
    """[S, Hkv, K, D], a view of the gathered slots."""
    return cache[slots].view(num_rows, -1, *cache.shape[1:]).transpose(1, 2)
