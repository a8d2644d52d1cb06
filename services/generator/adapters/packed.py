"""An adapter as the bank wants it: for each fused projection one A and one B, and who it is by its content.

Made by `peft_folder`, copied into a slot by the bank. Lives in host memory.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from services.generator.adapters.modules import EMBEDDING_KEY, GroupKey, GroupShape, Place
from services.generator.core.adapters import AdapterReport, ModuleReport


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """The adapter of one fused projection; slices that it leaves alone have rank 0.

    Attributes:
        a: [slices, R, in], R being its own largest rank; zeros beyond a slice's rank. `in` are token ids for the embedding.
        b: [out, R], likewise; the slices one below the other.
        ranks: [slices] int32.
        scales: [slices] fp32.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """A checked adapter.

    Attributes:
        digest: SHA-256 of everything that its answers depend on.
        kv_digest: of just those modules that influence cached keys and values; None where there are none.
        report: what it changes, and what its reader may want to know.
    """

    groups: Mapping[GroupKey, PackedGroup]
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
        return sum(group.a.nbytes + group.b.nbytes for group in self.groups.values())


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


def pack(weights: Iterable[ModuleWeights], dtype: torch.dtype) -> dict[GroupKey, PackedGroup]:
    """Put the modules of each fused projection together."""
    members: dict[GroupKey, list[ModuleWeights]] = {}
    for item in weights:
        members.setdefault(item.place.key, []).append(item)
    return {key: _pack_group(items, items[0].place.shape, dtype) for key, items in members.items()}


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


def _pack_group(items: list[ModuleWeights], shape: GroupShape, dtype: torch.dtype) -> PackedGroup:
    num_slices, max_rank = len(shape.modules), max(len(item.a) for item in items)
    a = torch.zeros(num_slices, max_rank, shape.in_features, dtype=dtype)
    b = torch.zeros(shape.out_features, max_rank, dtype=dtype)
    ranks = torch.zeros(num_slices, dtype=torch.int32)
    scales = torch.zeros(num_slices, dtype=torch.float32)
    rows = torch.split(b, list(shape.slice_sizes))
    for item in items:
        index, rank = item.place.index, len(item.a)
        a[index, :rank] = item.a
        rows[index][:, :rank] = item.b
        ranks[index], scales[index] = rank, item.scale
    return PackedGroup(a, b, ranks, scales)
