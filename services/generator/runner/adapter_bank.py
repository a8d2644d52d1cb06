"""Storage of adapters on the device: for each fused projection of each layer, and for embedding and head where there is room for
adapters of them, the A and B of every slot, stacked.

Written with slots that the scheduler's ledger decided on; read by every projection of a step. Allocates once, at start.
Layout: `a` [slots, slices, R, in] and `b` [slots, out, R], R being the largest rank a slot has room for; what a slot really uses
stands in `ranks` [slots, slices], and `scales` [slots, slices] stay fp32 and multiply the rank-r intermediate.
"""

from collections.abc import Mapping

import torch

from services.generator.adapters.modules import GroupKey, GroupShape
from services.generator.adapters.packed import PackedAdapter
from services.generator.core.specs import AdapterBankSpec
from services.generator.layers.adapter_group import AdapterGroup

SCRATCH_ROWS = 4096
"""Kernels leave the rank-r intermediates of a step in parts: never more than this many rows of them, or one for each row."""


class AdapterBank:
    """All slots.

    Args:
        shapes: what there is room for, see `AdapterTarget.banked_groups`.
    """

    def __init__(
        self, shapes: Mapping[GroupKey, GroupShape], spec: AdapterBankSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        widest, num_rows = max(len(shape.modules) for shape in shapes.values()), max(spec.max_tokens, SCRATCH_ROWS)
        scratch = torch.zeros(num_rows * widest * spec.max_rank, dtype=torch.float32, device=device)

        def group(shape: GroupShape) -> AdapterGroup:
            num_slices, num_slots, max_rank = len(shape.modules), spec.num_slots, spec.max_rank
            return AdapterGroup(
                # Zeros, not whatever was there: what lies beyond a slot's rank may enter a product, times zero.
                torch.zeros(num_slots, num_slices, max_rank, shape.in_features, dtype=dtype, device=device),
                torch.zeros(num_slots, shape.out_features, max_rank, dtype=dtype, device=device),
                torch.zeros(num_slots, num_slices, dtype=torch.int32, device=device),
                torch.zeros(num_slots, num_slices, dtype=torch.float32, device=device),
                scratch,
                shape.slice_sizes,
            )

        self._groups = {key: group(shape) for key, shape in shapes.items()}
        self._scratch = scratch
        self.num_slots = spec.num_slots

    @property
    def num_bytes(self) -> int:
        """Memory of all slots."""
        tensors = (
            tensor for group in self._groups.values() for tensor in (group.a, group.b, group.ranks, group.scales)
        )
        return sum(tensor.nbytes for tensor in tensors) + self._scratch.nbytes

    def install(self, slot: int, adapter: PackedAdapter) -> None:
        """Make `slot` hold `adapter` and nothing of what it held before."""
        for key, group in self._groups.items():
            packed = adapter.groups.get(key)
            if packed is None:
                group.ranks[slot] = 0
                continue
            rank = packed.a.shape[1]
            group.a[slot, :, :rank] = packed.a
            group.b[slot, :, :rank] = packed.b
            group.ranks[slot] = packed.ranks
            group.scales[slot] = packed.scales

    def group(self, key: GroupKey) -> AdapterGroup | None:
        """A fused projection of one layer, the embedding or the head, for all slots; None where there is no room for it."""
        return self._groups.get(key)
