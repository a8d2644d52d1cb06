"""An adapter as the bank wants it: for each fused projection one A and one B, and who it is by its content.

Made by `peft_folder`, copied into a slot by the bank. Lives in host memory.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

GroupKey = tuple[int, str]
"""(layer, name of the fused projection)"""


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """The adapter of one fused projection; slices that it leaves alone have rank 0.

    Attributes:
        a: [S, R, in], R being its own largest rank; zeros beyond a slice's rank.
        b: [out, R], likewise; the slices one below the other.
        ranks: [S] int32.
        scales: [S] fp32.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """One module that the adapter changes, by its full name."""

    module: str
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """A checked adapter.

    Attributes:
        digest: SHA-256 of everything that its answers depend on.
        kv_digest: of just those modules that influence cached keys and values; None where there are none.
        modules: what it changes.
        warnings: what its reader may want to know.
    """

    groups: Mapping[GroupKey, PackedGroup]
    digest: bytes
    kv_digest: bytes | None
    modules: tuple[ModuleReport, ...]
    warnings: tuple[str, ...] = ()

    @property
    def max_rank(self) -> int:
        """Largest rank of any module."""
        return max(module.rank for module in self.modules)

    @property
    def num_bytes(self) -> int:
        """Host memory of its tensors."""
        return sum(group.a.nbytes + group.b.nbytes for group in self.groups.values())


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """A [r, in] and B [out, r] of one module in the bank's dtype, and what B A is multiplied with."""

    module: str
    a: Tensor
    b: Tensor
    scale: float


def digest_of(weights: Iterable[ModuleWeights]) -> bytes:
    """SHA-256 over names, shapes, dtypes, bytes and scales; the order of `weights` does not matter."""
    total = hashlib.sha256(b"trivium-adapter-1")
    for item in sorted(weights, key=lambda item: item.module):
        a, b = item.a.contiguous(), item.b.contiguous()
        total.update(repr((item.module, tuple(a.shape), tuple(b.shape), str(a.dtype), item.scale)).encode())
        for tensor in (a, b):
            total.update(tensor.view(torch.uint8).numpy().data)
    return total.digest()
