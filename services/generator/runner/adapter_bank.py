"""Storage of adapters on the device: for each fused projection, and for embedding and head where there is room for adapters of
them, the A and B of every slot, stacked.

Written with slots that the scheduler's ledger decided on; read by every projection of a step. Allocates once, at start.
Layout: of each stack, for each layer the A of all slots as rows [slots * slices * R, in] below the base projection's own rows, so
that one product can take both; and B [slots, layers, out, R]; R being the largest rank a slot has room for. One table has
the ranks that slots really use and the scales, which stay fp32: the wide side multiplies by them.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from services.generator.adapters.modules import GroupKey, GroupStack
from services.generator.adapters.packed import PackedAdapter, PackedStack
from services.generator.core.specs import AdapterBankSpec
from services.generator.layers.adapter_group import AdapterGroup
from services.generator.runner.joined_weights import adapter_rows, join_layers
from shared.modeling.decoder import DecoderWeights, Linear

SCRATCH_ROWS = 4096
"""Kernels leave the rank-r intermediates of a step in parts: never more than this many rows of them, or one for each row."""

ALIGNED = 4
"""Entries of the table to whose multiples groups begin: 16 bytes, so that every group is alike to a kernel."""


class AdapterBank:
    """All slots.

    Args:
        stacks: what there is room for, see `AdapterTarget.banked_stacks`.
        weights: of the base. Their projections move into the bank and become views of it.
    """

    def __init__(self, stacks: Mapping[str, GroupStack], spec: AdapterBankSpec, weights: DecoderWeights) -> None:
        dtype, device = weights.embedding.dtype, weights.embedding.device
        self.num_slots = spec.num_slots
        self.max_rank = spec.max_rank
        joined = join_layers(weights, stacks, spec)
        self._stacks = {name: _Stack(stack, spec, joined[name]) for name, stack in stacks.items()}
        largest = max(stack.largest for stack in self._stacks.values())
        # What a host sends and does not stand in one piece in a slot lies here first: a transfer of many short rows is slow.
        self._staging = torch.empty(largest if device.type == "cuda" else 0, dtype=dtype, device=device)
        table = _Table(stacks, spec.num_slots, device)
        widest = max(len(stack.shape.modules) for stack in stacks.values())
        num_scratch = max(spec.max_tokens, SCRATCH_ROWS) * widest * spec.max_rank
        self._scratch = torch.zeros(num_scratch, dtype=torch.float32, device=device)
        self._groups = {
            key: AdapterGroup(
                *stack.group(level),
                *table.group(key),
                joined[name][level] if stacks[name].is_in_layers else None,
                self._scratch,
                stacks[name].shape.slice_sizes,
            )
            for name, stack in self._stacks.items()
            for level, key in enumerate(stacks[name].keys)
        }
        self._table = table

    @property
    def num_bytes(self) -> int:
        """Memory of all slots."""
        stacks = sum(stack.num_bytes for stack in self._stacks.values())
        return stacks + self._staging.nbytes + self._table.num_bytes + self._scratch.nbytes

    def install(self, slot: int, adapter: PackedAdapter) -> None:
        """Make `slot` hold `adapter` and nothing of what it held before, in stream order; nothing waits for the device."""
        for name, packed in adapter.stacks.items():
            stack = self._stacks[name]
            stack.fill_a(slot, packed.first, self._on_device(packed.a))
            out = stack.room_for_b(slot, packed)
            out.copy_(packed.b if out.is_contiguous() else self._on_device(packed.b), non_blocking=True)
        self._table.fill(slot, adapter.table)

    def group(self, key: GroupKey) -> AdapterGroup | None:
        """A fused projection of one layer, the embedding or the head, for all slots; None where there is no room for it."""
        return self._groups.get(key)

    def _on_device(self, packed: Tensor) -> Tensor:
        if not len(self._staging):
            return packed
        return self._staging[: packed.numel()].view(packed.shape).copy_(packed, non_blocking=True)


class _Stack:
    """A and B of one fused projection in all layers and slots."""

    def __init__(self, stack: GroupStack, spec: AdapterBankSpec, joined: Sequence[Linear]) -> None:
        shape = stack.shape
        self._a = [adapter_rows(each, shape, spec) for each in joined]
        self._b = joined[0].weight.new_zeros(spec.num_slots, len(joined), shape.out_features, spec.max_rank)

    @property
    def num_bytes(self) -> int:
        return sum(a.nbytes for a in self._a) + self._b.nbytes

    @property
    def largest(self) -> int:
        """Elements of the larger of a slot's A and its B."""
        return max(sum(a[0].numel() for a in self._a), self._b[0].numel())

    def group(self, level: int) -> tuple[Tensor, Tensor]:
        """A and B of one layer."""
        return self._a[level], self._b[:, level]

    def fill_a(self, slot: int, first: int, packed: Tensor) -> None:
        """Enter [layers, slices, R, in] from a layer on: slice by slice all is contiguous, which makes it one launch."""
        num_layers, num_slices, rank = packed.shape[:3]
        where = [(level, index) for level in range(num_layers) for index in range(num_slices)]
        rows = [self._a[first + level][slot, index, :rank] for level, index in where]
        torch._foreach_copy_(rows, [packed[each] for each in where])

    def room_for_b(self, slot: int, packed: PackedStack) -> Tensor:
        """Where a stack's [layers, out, R] belongs."""
        return self._b[slot, packed.first : packed.first + len(packed.b), :, : packed.b.shape[-1]]


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
