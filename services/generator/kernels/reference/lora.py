"""LoRA of many adapters over one batch, in plain torch.

Semantics:  h[t, s] = A[slot_t, s] x[t], in fp32;  y[t, slice s] += scale[slot_t, s] · B[slot_t, slice s] h[t, s].
            Rows at NO_ADAPTER are left as they are.
Source:     LoRA, arXiv:2106.09685, §4.1; grouped by adapter as in Punica, arXiv:2310.18547, §4.
The serving backend on a CPU and the oracle of the Triton kernels `lora_shrink`, `lora_expand` and, with `silu_mul`,
`lora_silu_mul`. Never loops over rows and never copies weights: slots that lie together are one batched product over a view of the
bank, and a batch that uses one adapter is one plain product. Unlike the kernels it reads the bank up to the highest rank among such
slots, so that what lies beyond a slot's own rank must be finite.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

MAX_PADDING = 2
"""Slots are taken together while that at most doubles the rows, padding and unused slots between them counted."""


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Rows whose slots lie together in the bank.

    Attributes:
        slots: which slots of the bank.
        rows: the rows of the step, sorted by slot; a slice where they stand together in the step.
        places: [n] where each stands among `num_places` rows a slot; None where nothing is padded.
        num_places: rows of each slot, padding included.
    """

    slots: slice
    rows: Tensor | slice
    places: Tensor | None
    num_places: int

    def gather(self, values: Tensor) -> Tensor:
        """[T, …] to [slots, num_places, …] in fp32, zeros where no row stands."""
        mine = values[self.rows].float()
        num_slots = self.slots.stop - self.slots.start
        if self.places is not None:
            padded = mine.new_zeros(num_slots * self.num_places, *mine.shape[1:])
            mine = padded.index_copy_(0, self.places, mine)
        return mine.reshape(num_slots, self.num_places, *mine.shape[1:])

    def rows_of(self, values: Tensor) -> Tensor:
        """[slots, num_places, …] to [n, …], in the order of `rows`."""
        flat = values.flatten(0, 1)
        return flat if self.places is None else flat[self.places]


def slot_groups(row_slots: Tensor) -> list[SlotGroup]:
    """The step's rows by slot, base rows left out; made once per step.

    Args:
        row_slots: [T] int32.
    """
    order = torch.argsort(row_slots, stable=True)
    order = order[int((row_slots < 0).sum()) :]
    if len(order) == 0:
        return []
    slots, counts = torch.unique_consecutive(row_slots[order].long(), return_counts=True)
    first, last, most = int(slots[0]), int(slots[-1]), int(counts.max())
    num_places = (last - first + 1) * most
    if num_places > MAX_PADDING * len(order):
        spans = pairwise([0, *counts.cumsum(0).tolist()])
        return [
            SlotGroup(slice(slot, slot + 1), _as_slice(order[start:end]), None, end - start)
            for slot, (start, end) in zip(slots.tolist(), spans, strict=True)
        ]
    within = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    places = (slots - first).repeat_interleave(counts) * most + within
    return [
        SlotGroup(slice(first, last + 1), _as_slice(order), None if num_places == len(order) else places, most)
    ]  # fmt: skip


def _as_slice(rows: Tensor) -> Tensor | slice:
    """A slice of neighbouring rows is a view: nothing is gathered, nothing scattered."""
    first = int(rows[0])
    in_a_row = torch.arange(first, first + len(rows), device=rows.device)
    return slice(first, first + len(rows)) if torch.equal(rows, in_a_row) else rows


def lora_shrink(h: Tensor, x: Tensor, a: Tensor, ranks: Tensor, groups: list[SlotGroup]) -> None:
    """Write the rank-r intermediate of each row that has an adapter, zeros beyond the adapter's rank.

    Args:
        h: [T, slices, R] fp32. Mutated.
        x: [T, in].
        a: [slots, slices, R, in].
        ranks: [slots, slices] int32; 0 where the adapter leaves a slice alone.
        groups: see `slot_groups`.
    """
    for group in groups:
        mine, rows = ranks[group.slots], group.gather(x)  # [slots, slices], [slots, n, in]
        rank = int(mine.max())
        is_used = torch.arange(rank, device=h.device) < mine[..., None]  # [slots, slices, rank]
        for s in range(a.shape[1]):
            out = torch.bmm(rows, a[group.slots, s, :rank].float().mT) * is_used[:, None, s]  # [slots, n, rank]
            h[group.rows, s, :rank] = group.rows_of(out)


def lora_expand(
    y: Tensor,
    h: Tensor,
    b: Tensor,
    ranks: Tensor,
    scales: Tensor,
    groups: list[SlotGroup],
    slice_sizes: tuple[int, ...],
) -> None:
    """Add each adapter's share to the rows that use it.

    Args:
        y: [T, out], the base projection's output. Mutated.
        h: [T, slices, R] fp32, see `lora_shrink`.
        b: [slots, out, R].
        ranks: [slots, slices] int32.
        scales: [slots, slices] fp32.
        groups: see `slot_groups`.
        slice_sizes: columns of each slice of `y`, in order; their sum is `out`.
    """
    for group in groups:
        rank = int(ranks[group.slots].max())
        rows = group.gather(h[:, :, :rank])  # [slots, n, slices, rank]
        start = 0
        for s, size in enumerate(slice_sizes):
            columns = slice(start, start + size)
            scaled = rows[:, :, s] * scales[group.slots, s, None, None]  # [slots, n, rank]
            out = torch.bmm(scaled, b[group.slots, columns, :rank].float().mT)  # [slots, n, size]
            y[group.rows, columns] = (y[group.rows, columns].float() + group.rows_of(out)).to(y.dtype)
            start += size
