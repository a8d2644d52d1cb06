"""Random draws that depend on nothing but (seed, position): a counter-based generator.

Source: "Parallel random numbers: as easy as 1, 2, 3", SC 2011, Philox4x32-10, with its published constants; the same function is
in Triton (`tl.philox`), so that draws agree between backends. Used by the Sampler.
"""

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10


def philox(seed: Tensor, counter: Tensor) -> Tensor:
    """First of the four 32-bit words for key `seed` and counter (`counter`, 0, 0, 0).

    Args:
        seed: [N] int64, used as two 32-bit key words.
        counter: [N] int64, below 2**32.
    Returns:
        [N] int64 in [0, 2**32).
    """
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    c0, c1, c2, c3 = counter & _MASK, torch.zeros_like(seed), torch.zeros_like(seed), torch.zeros_like(seed)
    for _ in range(_NUM_ROUNDS):
        # Products of two 32-bit words wrap around in int64, yet their bits are right; the masks undo the sign.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0


def uniform(seed: Tensor, counter: Tensor) -> Tensor:
    """[N] float64 in [0, 1) with 24 random bits, exact in fp32 too."""
    return (philox(seed, counter) >> 8).double() * 2.0**-24
