"""Banks and batches of the Llama-3-8B shape for the LoRA benches: rank 16 on all projections, row i uses adapter i mod n."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.generator.kernels.lora_expand import lora_expand
from services.generator.kernels.lora_segments import LoraSegments, SegmentLayout, chunk_size_for
from services.generator.kernels.lora_shrink import lora_shrink, num_shrink_parts
from services.generator.kernels.reference import lora as reference

GROUPS = {
    "qkv": (4096, (4096, 1024, 1024)),
    "o": (4096, (4096,)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}
"""name: (in, sizes of the slices)."""

Mix = tuple[int, int]
MIXES: tuple[Mix, ...] = ((1, 1), (8, 1), (8, 8), (32, 32), (64, 1), (64, 8), (64, 32), (64, 64), (128, 64))
"""(rows, adapters) of decode steps."""

PREFILLS: tuple[Mix, ...] = ((2048, 1), (8192, 8))
"""Likewise of steps that compute prompts."""

JOINED = (8, 32, 64)
"""Numbers of first slots of a bank of 64 whose rank-r side the base products take along: of these, the fewest that hold the mix."""


@dataclass(frozen=True)
class LoraInputs:
    """One projection group of one layer."""

    x: Tensor
    y: Tensor
    h: Tensor
    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor
    segments: LoraSegments[Tensor]
    chunk_size: int
    slice_sizes: tuple[int, ...]

    def shrink(self) -> None:
        """One launch."""
        lora_shrink(self.h, self.x, self.a, self.ranks, *self.segments.arrays, chunk_size=self.chunk_size)

    def expand(self) -> None:
        """One launch."""
        adapters = (self.b, self.ranks, self.scales, *self.segments.arrays)
        lora_expand(self.y, self.h[:, :, None], *adapters, chunk_size=self.chunk_size, slice_sizes=self.slice_sizes)

    def expected_h(self) -> Tensor:
        """The oracle's intermediate."""
        h = torch.zeros_like(self.h[0])
        groups = reference.slot_groups(self.segments.row_slots)
        reference.lora_shrink(h, self.x, self.a, self.ranks, groups)
        return h

    def expected_y(self, y: Tensor, h: Tensor) -> Tensor:
        """The oracle's output, from the kernel's own intermediate."""
        out, groups = y.to(torch.float32, copy=True), reference.slot_groups(self.segments.row_slots)
        reference.lora_expand(out, h, self.b, self.ranks, self.scales, groups, self.slice_sizes)
        return out

    @property
    def parameters(self) -> dict[str, int]:
        """What tells a mix from the others of a bench."""
        used = self.segments.row_slots.unique().long()
        return {"rows": len(self.x), "adapters": len(used), "rank": int(self.ranks[used].max())}

    @property
    def bytes_of_a(self) -> int:
        """Weights of A that must be read once, at the adapters' ranks."""
        used = self.segments.row_slots.unique().long()
        return int(self.ranks[used].sum()) * self.a.shape[3] * self.a.itemsize

    @property
    def bytes_of_b(self) -> int:
        """Likewise of B."""
        used = self.segments.row_slots.unique().long()
        sizes = torch.tensor(self.slice_sizes, device=self.ranks.device)
        return int((self.ranks[used] * sizes).sum()) * self.b.itemsize


def make_inputs(
    group: str,
    mix: Mix,
    *,
    rank: int = 16,
    max_rank: int = 16,
    chunk_size: int | None = None,
    num_slots: int | None = None,
) -> LoraInputs:
    """Random bf16 inputs; the regime is the production table's unless `chunk_size` says otherwise.

    Args:
        mix: row i of the first uses slot i mod the second.
        num_slots: of the bank, as many as adapters where nothing is said.
    """
    num_rows, num_adapters = mix
    in_features, slice_sizes = GROUPS[group]
    num_slices, out, num_slots = len(slice_sizes), sum(slice_sizes), num_slots or num_adapters
    chunk = chunk_size_for(num_rows, num_adapters, max_rank) if chunk_size is None else chunk_size
    layout = SegmentLayout(num_rows, num_adapters, chunk)
    packed = layout.pack((np.arange(num_rows) % num_adapters).astype(np.int32))
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    return LoraInputs(
        x=torch.randn(num_rows, in_features, **bf16),
        y=torch.randn(num_rows, out, **bf16),
        h=torch.zeros(num_shrink_parts(num_rows, in_features, chunk), num_rows, num_slices, max_rank, device="cuda"),
        a=torch.randn(num_slots, num_slices, max_rank, in_features, **bf16) / in_features**0.5,
        b=torch.randn(num_slots, out, max_rank, **bf16),
        ranks=torch.full((num_slots, num_slices), rank, dtype=torch.int32, device="cuda"),
        scales=torch.rand(num_slots, num_slices, device="cuda") + 0.5,
        segments=layout.split(torch.from_numpy(packed).cuda()),
        chunk_size=chunk,
        slice_sizes=slice_sizes,
    )
