"""Storage of the paged KV cache: the tensors, one pair per layer, addressed by slot.

Written and read by the runner with slots that the scheduler's ledger decided on. Allocates once, at start.
"""

import torch

from services.generator.core.specs import KVCacheSpec
from shared.modeling.config import DecoderConfig


def kv_bytes_per_block(config: DecoderConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.kv_size * dtype.itemsize


class KVCachePool:
    """Keys and values of all layers: each [L, slots, Hkv, D]; slot = block id * block size + offset."""

    def __init__(self, config: DecoderConfig, spec: KVCacheSpec, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_layers, spec.num_blocks * spec.block_size, config.num_kv_heads, config.head_dim)
        # Zeros, not whatever was there: a masked key still enters a product, and 0 · NaN is NaN.
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        """Memory of all keys and values."""
        return self.keys.nbytes + self.values.nbytes
