"""The adapters of one fused projection as the layers see them.

Made by the runner's `AdapterBank`, which owns the tensors and alone changes what slots hold; handed by `StepOps` to the kernels of
a layer, which write to `scratch` only.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdapterGroup:
    """One fused projection of one layer, for all slots of the bank.

    Attributes:
        a: [slots, slices, R, in].
        b: [slots, out, R].
        ranks: [slots, slices] int32, what each slot really uses of R.
        scales: [slots, slices] fp32.
        scratch: fp32, for the rank-r intermediates of a step; shared by all groups.
        slice_sizes: columns of each slice.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor
    scratch: Tensor
    slice_sizes: tuple[int, ...]

    def intermediate(self, num_rows: int) -> Tensor:
        """Scratch [N, slices, R], holding whatever the last product left."""
        num_slices, max_rank = self.a.shape[1:3]
        return self.scratch[: num_rows * num_slices * max_rank].view(num_rows, num_slices, max_rank)
