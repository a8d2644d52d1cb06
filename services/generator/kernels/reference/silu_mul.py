"""SiLU of the gate times the up projection, in plain torch: arXiv:2002.05202. The oracle of the Triton kernel `silu_mul`."""

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, computed in fp32: [T, 2 F], gate and up side by side, to [T, F] in the same dtype."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)
