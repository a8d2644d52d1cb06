"""A random bank of adapters, and a batch over it, for the tests of the LoRA kernels."""

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from services.generator.kernels.lora_segments import LoraSegments, SegmentLayout
from services.generator.kernels.reference.lora import SlotGroup, slot_groups
from tests.kernels.test_lora_segments import popularity

NUM_SLOTS, CHUNK = 5, 16
CHUNK_OF = {"rows": 1, "tiles": CHUNK}

MAX_RANK = 24
"""No power of two, no multiple of the tiles' 16 ranks; the widths of banks are multiples of 8."""


@dataclass(frozen=True, slots=True)
class LoraCase:
    """Inputs of one projection; ranks differ by slot and slice, one is 0, and what is beyond a rank is NaN."""

    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor
    segments: LoraSegments[Tensor]
    groups: list[SlotGroup]
    slice_sizes: tuple[int, ...]

    @property
    def has_adapter(self) -> Tensor:
        """[T] bool."""
        return self.segments.row_slots >= 0

    def ranks_of_rows(self) -> Tensor:
        """[T, S, R] bool: which elements of `h` are part of the product."""
        ranks = self.ranks[self.segments.row_slots.long().clamp(min=0)]  # [T, S]
        is_used = torch.arange(self.a.shape[2], device=ranks.device) < ranks[..., None]
        return is_used & self.has_adapter[:, None, None]


def make_parts(case: LoraCase, parts: int) -> Tensor:
    """Random `h` [parts, T, slices, R], NaN wherever a kernel must not look."""
    h = torch.randn(parts, len(case.y), len(case.slice_sizes), case.b.shape[2], device=case.y.device)
    return h.where(case.ranks_of_rows(), torch.nan)


def beside(y: Tensor, h: Tensor, case: LoraCase) -> tuple[Tensor, Tensor]:
    """`y` and `h` [1, T, slots, slices, R] as the product of a joined weight leaves them: columns of one tensor in one dtype.

    Args:
        h: [1, T, slices, R]; it stands where the row's own slot is, NaN everywhere else.
    """
    num_rows, max_rank = h.shape[1], h.shape[3]
    slots = case.segments.row_slots.long()
    joined = torch.full((num_rows, NUM_SLOTS, *h.shape[2:]), torch.nan, dtype=y.dtype, device=y.device)
    rows = torch.arange(num_rows, device=y.device)
    joined[rows, slots.clamp(min=0)] = h[0].to(y.dtype)
    whole = torch.cat([y, joined.flatten(1)], dim=1)
    return whole[:, : y.shape[1]], whole[:, y.shape[1] :].unflatten(1, (NUM_SLOTS, len(case.slice_sizes), max_rank))[
        None
    ]


def segments_of(row_slots: np.ndarray, device: str) -> LoraSegments[Tensor]:
    """The step's metadata on the device."""
    layout = SegmentLayout(len(row_slots), NUM_SLOTS, CHUNK)
    return layout.split(torch.from_numpy(layout.pack(row_slots)).to(device))


def finite(weights: Tensor) -> Tensor:
    """What the oracle reads: in fp32, and with what another adapter might have left beyond a rank."""
    return weights.float().nan_to_num(99.0)


def renew(case: LoraCase, row_slots: np.ndarray) -> None:
    """Another mix of adapters, at the same addresses."""
    other = segments_of(row_slots, case.x.device.type)
    for field in fields(other):
        getattr(case.segments, field.name).copy_(getattr(other, field.name))
    case.groups[:] = slot_groups(case.segments.row_slots)


def make_case(
    shape: str,
    num_rows: int,
    in_features: int,
    slice_sizes: tuple[int, ...],
    *,
    place: tuple[str, torch.dtype],
    max_rank: int = MAX_RANK,
) -> LoraCase:
    """Inputs for `num_rows` rows whose slots are of this popularity."""
    device, dtype = place
    out, num_slices = sum(slice_sizes), len(slice_sizes)
    ranks = torch.tensor([[1, 16, 17], [8, 8, 8], [20, 3, 16], [16, 0, 20], [7, 12, 4]], dtype=torch.int32)[
        :, :num_slices
    ].contiguous()
    ranks *= max(1, max_rank // MAX_RANK)
    a = torch.randn(NUM_SLOTS, num_slices, max_rank, in_features) / in_features**0.5
    b = torch.randn(NUM_SLOTS, out, max_rank)
    a[torch.arange(max_rank) >= ranks[..., None]] = torch.nan
    of_columns = ranks.repeat_interleave(torch.tensor(slice_sizes), dim=1)  # [slots, out]
    b[torch.arange(max_rank) >= of_columns[..., None]] = torch.nan
    segments = segments_of(popularity(shape, num_rows, NUM_SLOTS, np.random.default_rng(0)), device)
    return LoraCase(
        x=torch.randn(num_rows, in_features).to(device, dtype),
        y=torch.randn(num_rows, out).to(device, dtype),
        a=a.to(device, dtype),
        b=b.to(device, dtype),
        ranks=ranks.to(device),
        scales=(torch.rand(NUM_SLOTS, num_slices) + 0.5).to(device),
        segments=segments,
        groups=slot_groups(segments.row_slots),
        slice_sizes=slice_sizes,
    )
