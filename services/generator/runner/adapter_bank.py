"""Storage of adapters on the device: for each fused projection of each layer, and for embedding and head where there is room for
adapters of them, the A and B of every slot, stacked.

Written with slots that the scheduler's ledger decided on; read by every projection of a step. Allocates once, at start.
Layout: `a` [slots, S, R, in] and `b` [slots, out, R], R being the largest rank a slot has room for; what a slot really uses stands
in `ranks` [slots, S], and `scales` [slots, S] stay fp32 and multiply the rank-r intermediate.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from services.generator.adapters.modules import EMBEDDING_KEY, HEAD_KEY, GroupKey, GroupShape
from services.generator.adapters.packed import PackedAdapter
from services.generator.core.specs import AdapterBankSpec
from services.generator.kernels.reference.lora import SlotGroup, lora_expand, lora_shrink, slot_groups
from services.generator.kernels.reference.lora_lookup import lora_lookup


@dataclass(frozen=True, slots=True)
class BankedGroup:
    """One fused projection of one layer, for all slots."""

    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor
    slice_sizes: tuple[int, ...]


class AdapterBank:
    """All slots.

    Args:
        shapes: what there is room for, see `AdapterTarget.banked_groups`.
    """

    def __init__(
        self, shapes: Mapping[GroupKey, GroupShape], spec: AdapterBankSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        def group(shape: GroupShape) -> BankedGroup:
            num_slices, num_slots, max_rank = len(shape.modules), spec.num_slots, spec.max_rank
            return BankedGroup(
                # Zeros, not whatever was there: what lies beyond a slot's rank may enter a product, times zero.
                torch.zeros(num_slots, num_slices, max_rank, shape.in_features, dtype=dtype, device=device),
                torch.zeros(num_slots, shape.out_features, max_rank, dtype=dtype, device=device),
                torch.zeros(num_slots, num_slices, dtype=torch.int32, device=device),
                torch.zeros(num_slots, num_slices, dtype=torch.float32, device=device),
                shape.slice_sizes,
            )

        self._groups = {key: group(shape) for key, shape in shapes.items()}
        widest = max(len(shape.modules) for shape in shapes.values())
        self._scratch = torch.zeros(spec.max_tokens * widest * spec.max_rank, dtype=torch.float32, device=device)

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

    def add(self, key: GroupKey, y: Tensor, x: Tensor, rows: list[SlotGroup]) -> None:
        """Add to the base projection's output what each row's adapter says; nothing where there is no room for adapters of it.

        Args:
            y: [T, out]. Mutated.
            x: [T, in], the projection's input.
            rows: the step's rows by slot.
        """
        group = self._groups.get(key)
        if group is None or not rows:
            return
        h = self._intermediate(group, len(x))
        lora_shrink(h, x, group.a, group.ranks, group.scales, rows)
        lora_expand(y, h, group.b, group.ranks, rows, group.slice_sizes)

    def add_to_embedding(self, y: Tensor, token_ids: Tensor, row_slots: Tensor, rows: list[SlotGroup]) -> None:
        """The same for the embedding.

        Args:
            y: [T, C], the base model's rows. Mutated.
            token_ids: [T] int64.
            row_slots: [T] int32, the slot of each row.
            rows: the same by slot.
        """
        group = self._groups.get(EMBEDDING_KEY)
        if group is None or not rows:
            return
        h = self._intermediate(group, len(y))
        lora_lookup(h, token_ids, row_slots, group.a, group.ranks, group.scales)
        lora_expand(y, h, group.b, group.ranks, rows, group.slice_sizes)

    def add_to_logits(self, y: Tensor, x: Tensor, row_slots: Tensor) -> None:
        """The same for the head, whose rows are some of the step's.

        Args:
            y: [N, V]. Mutated.
            x: [N, C].
            row_slots: [N] int32, the slot of each row.
        """
        if HEAD_KEY in self._groups:
            self.add(HEAD_KEY, y, x, slot_groups(row_slots))

    def _intermediate(self, group: BankedGroup, num_rows: int) -> Tensor:
        """[T, S, R] fp32 in the scratch that all groups share; holds whatever the last one left."""
        num_slices, max_rank = group.a.shape[1:3]
        return self._scratch[: num_rows * num_slices * max_rank].view(num_rows, num_slices, max_rank)
