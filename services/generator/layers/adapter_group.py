"""The adapters of one fused projection as the layers see them.

Made by the runner's `AdapterBank`, which owns the tensors and alone changes what slots hold; handed by `StepOps` to the kernels of
a layer, which write to `scratch` only.
"""

from dataclasses import dataclass

from torch import Tensor

from shared.modeling.decoder import Linear


@dataclass(frozen=True, slots=True)
class AdapterGroup:
    """One fused projection of one layer, for all slots of the bank.

    Attributes:
        a: [slots, slices, R, in].
        b: [slots, out, R].
        ranks: [slots, slices] int32, what each slot really uses of R.
        scales: [slots, slices] fp32.
        joined: the base projection's rows and, below them, `a` as rows [slots * slices * R]; None of embedding and head.
        scratch: fp32, for the rank-r intermediates of a step; shared by all groups.
        slice_sizes: columns of each slice.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor
    joined: Linear | None
    scratch: Tensor
    slice_sizes: tuple[int, ...]

    def joined_with(self, num_slots: int) -> Linear | None:
        """One projection to the base's output and, beside it, the intermediates [num_slots, slices, R] of the first slots."""
        if self.joined is None or num_slots == 0:
            return None
        num_slices, max_rank = self.a.shape[1:3]
        weight, bias, end = self.joined.weight, self.joined.bias, self.b.shape[1] + num_slots * num_slices * max_rank
        return Linear(weight[:end], None if bias is None else bias[:end])

    def intermediate(self, num_rows: int) -> Tensor:
        """Scratch [N, slices, R], holding whatever the last product left."""
        num_slices, max_rank = self.a.shape[1:3]
        return self.scratch[: num_rows * num_slices * max_rank].view(num_rows, num_slices, max_rank)
