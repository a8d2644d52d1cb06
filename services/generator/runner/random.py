"""Random draws that depend on nothing but (seed, position): a counter-based generator.

Source: "Parallel random numbers: as easy as 1, 2, 3", SC 2011, Philox4x32-10, with its published constants. NumPy on the host,
which knows both before the device is done: on a GPU these few words would be some hundred launches. Used by the Sampler.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_UNUSED_BITS = np.uint64(8)
_NUM_ROUNDS = 10


def philox(seed: ArrayLike, counter: ArrayLike) -> NDArray[np.uint64]:
    """First of the four 32-bit words for key `seed` and counter (`counter`, 0, 0, 0).

    Args:
        seed: [N] int64, used as two 32-bit key words.
        counter: [N] integers, from 0 to below 2**32.
    Returns:
        [N], below 2**32.
    """
    key, c0 = np.asarray(seed, np.int64).view(np.uint64), np.asarray(counter).astype(np.uint64)
    k0, k1 = key & _MASK, key >> _WORD
    c1 = c2 = c3 = np.zeros_like(c0)
    for _ in range(_NUM_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _WORD) ^ c1 ^ k0, p1 & _MASK, (p0 >> _WORD) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0


def uniform(seed: ArrayLike, counter: ArrayLike) -> NDArray[np.float64]:
    """[N] in [0, 1) with 24 random bits, exact in fp32 too."""
    return (philox(seed, counter) >> _UNUSED_BITS).astype(np.float64) * 2.0**-24
