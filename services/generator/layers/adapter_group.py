"""The adapters of one fused projection as the layers see them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdapterGroup:
    """One fused projection of one layer, for all slots of the bank.

    Attributes:
        a: [slots, S, R, in].
        b: [slots, out, R].
        ranks: [slots, S] int32, what each slot really uses of R.
        scales: [slots, S] fp32.
        scratch: fp32, for the rank-r intermediates of a step; shared by all groups.
        slice_sizes: columns of each of the S slices.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    scales: Tensor
    scratch: Tensor
    slice_sizes: tuple[int, ...]
