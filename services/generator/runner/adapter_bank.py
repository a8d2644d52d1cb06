"""Storage of adapters on the device: for each fused projection, and for embedding and head where there is room for adapters of
them, the A and B of every slot, stacked.

Written with slots that the scheduler's ledger decided on; read by every projection of a step. Allocates once, at start.
Layout: of each stack, A [slots, layers, slices, R, in] and B [slots, layers, out, R], R being the largest rank a slot has room for.
What a slot really uses stands in one table of ranks, and scales stay fp32 and multiply the rank-r intermediate.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from services.generator.adapters.modules import GroupKey, GroupStack
from services.generator.adapters.packed import PackedAdapter
from services.generator.core.specs import AdapterBankSpec
from services.generator.layers.adapter_group import AdapterGroup

SCRATCH_ROWS = 4096
"""Kernels leave the rank-r intermediates of a step in parts: never more than this many rows of them, or one for each row."""

ALIGNED = 4
"""Entries of the table to whose multiples groups begin: 16 bytes, so that every group is alike to a kernel."""


class AdapterBank:
    """All slots.

    Args:
        stacks: what there is room for, see `AdapterTarget.banked_stacks`.
    """

    def __init__(
        self, stacks: Mapping[str, GroupStack], spec: AdapterBankSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_slots = spec.num_slots
        self._stacks = {name: _storage(stack, spec, dtype, device) for name, stack in stacks.items()}
        largest = max(tensor[0].numel() for pair in self._stacks.values() for tensor in pair)
        # What is copied from a host and is not as wide as the slot lies here first: a transfer of many short rows is slow.
        self._staging = torch.empty(largest if device.type == "cuda" else 0, dtype=dtype, device=device)
        table = _Table(stacks, spec.num_slots, device)
        widest, num_rows = (
            max(len(stack.shape.modules) for stack in stacks.values()),
            max(spec.max_tokens, SCRATCH_ROWS),
        )
        self._scratch = torch.zeros(num_rows * widest * spec.max_rank, dtype=torch.float32, device=device)
        self._groups = {
            key: AdapterGroup(
                a[:, level], b[:, level], *table.group(key), self._scratch, stacks[name].shape.slice_sizes
            )
            for name, (a, b) in self._stacks.items()
            for level, key in enumerate(stacks[name].keys)
        }
        self._table = table

    @property
    def num_bytes(self) -> int:
        """Memory of all slots."""
        stacks = sum(a.nbytes + b.nbytes for a, b in self._stacks.values())
        return stacks + self._staging.nbytes + self._table.num_bytes + self._scratch.nbytes

    def install(self, slot: int, adapter: PackedAdapter) -> None:
        """Make `slot` hold `adapter` and nothing of what it held before, in stream order; nothing waits for the device."""
        for name, packed in adapter.stacks.items():
            num_layers, rank = len(packed.a), packed.b.shape[-1]
            layers = slice(packed.first, packed.first + num_layers)
            a, b = self._stacks[name]
            self._fill(a[slot, layers, :, :rank], packed.a)
            self._fill(b[slot, layers, :, :rank], packed.b)
        self._table.fill(slot, adapter.table)

    def group(self, key: GroupKey) -> AdapterGroup | None:
        """A fused projection of one layer, the embedding or the head, for all slots; None where there is no room for it."""
        return self._groups.get(key)

    def _fill(self, out: Tensor, packed: Tensor) -> None:
        if out.is_contiguous() or not len(self._staging):
            out.copy_(packed, non_blocking=True)
        else:
            staged = self._staging[: packed.numel()].view(packed.shape)
            out.copy_(staged.copy_(packed, non_blocking=True))


class _Table:
    """Rank and scale of every slice of every group in every slot, in one tensor, of which one launch writes a slot's."""

    def __init__(self, stacks: Mapping[str, GroupStack], num_slots: int, device: torch.device) -> None:
        self._where: dict[GroupKey, Tensor] = {}
        start = 0
        for stack in stacks.values():
            size = num_slots * len(stack.shape.modules)
            for key in stack.keys:
                self._where[key] = torch.arange(start, start + size).view(num_slots, -1)
                start += -(-size // ALIGNED) * ALIGNED
        self._values = torch.zeros(2, start, dtype=torch.int32, device=device)
        self._of_slot = torch.cat(list(self._where.values()), dim=1).to(device)
        self._staging = torch.empty(2, self._of_slot.shape[1], dtype=torch.int32, device=device)

    @property
    def num_bytes(self) -> int:
        return self._values.nbytes + self._of_slot.nbytes + self._staging.nbytes

    def group(self, key: GroupKey) -> tuple[Tensor, Tensor]:
        """Ranks [slots, slices] int32 and scales [slots, slices] fp32 of a group."""
        where = self._where[key]
        ranks, scales = self._values[:, where[0, 0] : where[-1, -1] + 1].view(2, *where.shape)
        return ranks, scales.view(torch.float32)

    def fill(self, slot: int, table: Tensor) -> None:
        """Enter the table of a `PackedAdapter`."""
        self._values.index_copy_(1, self._of_slot[slot], self._staging.copy_(table, non_blocking=True))


def _storage(
    stack: GroupStack, spec: AdapterBankSpec, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """A and B of all slots. Zeros, not whatever was there: what lies beyond a slot's rank may enter a product, times zero."""
    shape, outer = stack.shape, (spec.num_slots, len(stack.keys))
    a = torch.zeros(*outer, len(shape.modules), spec.max_rank, shape.in_features, dtype=dtype, device=device)
    return a, torch.zeros(*outer, shape.out_features, spec.max_rank, dtype=dtype, device=device)
