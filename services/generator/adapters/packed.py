"""An adapter as the bank wants it: one A and one B for each fused projection of all layers, and who it is by its content.

Made by `peft_folder`, copied into a slot by the bank. Lives in host memory, page-locked where the bank is on a GPU, and has the
size of its own ranks, not of a slot's.
"""

import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from services.generator.adapters.modules import EMBEDDING_KEY, AdapterTarget, GroupStack, Place
from services.generator.core.adapters import AdapterReport, ModuleReport


@dataclass(frozen=True, slots=True)
class PackedStack:
    """The adapter of one fused projection in the layers from the first to the last that it changes.

    Attributes:
        first: where that first one stands in the `GroupStack`.
        a: [layers, slices, R, in], R being its largest rank; zeros beyond a slice's own. `in` are token ids for the embedding.
        b: [layers, out, R], likewise; the slices one below the other.
    """

    first: int
    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """A checked adapter.

    Attributes:
        stacks: what it changes, by name.
        table: [2, entries] int32, rank and scale (the bits of an fp32) of each slice of each group of each stack that the bank has;
            zeros where it changes nothing.
        digest: SHA-256 of everything that its answers depend on.
        kv_digest: of just those modules that influence cached keys and values; None where there are none.
        report: what it changes, and what its reader may want to know.
    """

    stacks: Mapping[str, PackedStack]
    table: Tensor
    digest: bytes
    kv_digest: bytes | None
    report: AdapterReport

    @property
    def modules(self) -> tuple[ModuleReport, ...]:
        """What it changes."""
        return self.report.modules

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its reader may want to know."""
        return self.report.warnings

    @property
    def max_rank(self) -> int:
        """Largest rank of any module."""
        return self.report.max_rank

    @property
    def num_bytes(self) -> int:
        """Host memory of its tensors."""
        return sum(stack.a.nbytes + stack.b.nbytes for stack in self.stacks.values()) + self.table.nbytes


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """A [r, in] and B [out, r] of one module in the bank's dtype, and what B A is multiplied with, as fp32 holds it."""

    module: str
    place: Place
    a: Tensor
    b: Tensor
    scale: float

    def digest(self) -> bytes:
        """SHA-256 over name, shapes, dtype, scale and bytes."""
        a, b = self.a.contiguous(), self.b.contiguous()
        total = hashlib.sha256(repr((self.module, tuple(a.shape), tuple(b.shape), str(a.dtype))).encode())
        total.update(struct.pack("<f", self.scale))  # a field of its own: folded into B it would be rounded with it
        for tensor in (a, b):
            total.update(tensor.view(torch.uint8).numpy().data)
        return total.digest()


def pack(weights: Iterable[ModuleWeights], target: AdapterTarget) -> tuple[dict[str, PackedStack], Tensor]:
    """Put the modules of each stack together: stacks and table of a `PackedAdapter`."""
    stacks, members = target.banked_stacks(), defaultdict[str, list[ModuleWeights]](list)
    for item in weights:
        members[item.place.group].append(item)
    table = torch.cat([_entries(members[name], stack) for name, stack in stacks.items()], dim=1)
    packed = {name: _pack_stack(items, target) for name, items in members.items() if items}
    return packed, table.pin_memory() if target.is_pinned else table


def digests(weights: Iterable[ModuleWeights], num_layers: int) -> tuple[bytes, bytes | None]:
    """Of all modules, and of those that influence cached keys and values, None if there are none; each tensor is read once.

    Modules whose B is all zeros count like any other: the digest says what is held, not what it comes to.
    """
    by_module = {item.module: (item.digest(), influences_kv(item.place, num_layers)) for item in weights}
    in_order = [by_module[module] for module in sorted(by_module)]
    influencing = [digest for digest, is_influencing in in_order if is_influencing]
    return _joined([digest for digest, _ in in_order]), _joined(influencing) if influencing else None


def influences_kv(place: Place, num_layers: int) -> bool:
    """Whether a module comes before some layer's keys and values: all do but the head and what follows those of the last layer."""
    if place.layer is None:
        return place.key == EMBEDDING_KEY
    return place.layer < num_layers - 1 or (place.group == "qkv" and place.index > 0)


def _joined(parts: list[bytes]) -> bytes:
    return hashlib.sha256(b"trivium-adapter-2" + b"".join(parts)).digest()


def _entries(items: list[ModuleWeights], stack: GroupStack) -> Tensor:
    """The part of a table that is about one stack."""
    entries = torch.zeros(2, len(stack.keys), len(stack.shape.modules), dtype=torch.int32)
    ranks, scales = entries[0], entries[1].view(torch.float32)
    for item in items:
        where = item.place.level, item.place.index
        ranks[where], scales[where] = len(item.a), item.scale
    return entries.flatten(1)


def _pack_stack(items: list[ModuleWeights], target: AdapterTarget) -> PackedStack:
    shape, levels = items[0].place.shape, [item.place.level for item in items]
    first, num_layers, max_rank = min(levels), max(levels) - min(levels) + 1, max(len(item.a) for item in items)
    sizes = (num_layers, len(shape.modules), max_rank, shape.in_features), (num_layers, shape.out_features, max_rank)
    a, b = (torch.zeros(size, dtype=target.dtype, pin_memory=target.is_pinned) for size in sizes)
    for item, level in zip(items, levels, strict=True):
        rank, rows = len(item.a), torch.split(b[level - first], list(shape.slice_sizes))
        a[level - first, item.place.index, :rank] = item.a
        rows[item.place.index][:, :rank] = item.b
    return PackedStack(first, a, b)
