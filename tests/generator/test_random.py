"""The generator of uniform numbers against a published vector, plain integers and expected frequencies."""

import numpy as np

from services.generator.runner.random import philox, uniform


def test_philox_known_answer():
    # First word of the Random123 known-answer test for Philox4x32-10 with zero key and counter.
    assert philox([0], [0]).tolist() == [0x6627E8D5]


def test_philox_against_a_plain_integer_implementation():
    def plain(key, counter):
        c, k = [counter, 0, 0, 0], [key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF]
        for _ in range(10):
            p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return c[0]

    seeds = [0, 1, -1, 2**62 + 12345, -(2**63), 2**63 - 1]
    counters = [0, 1, 2, 4095, 131071, 2**31]
    pairs = [(s, c) for s in seeds for c in counters]
    ours = philox([s for s, _ in pairs], [c for _, c in pairs])
    assert ours.tolist() == [plain(s % 2**64, c) for s, c in pairs]


def test_uniform_is_uniform_over_positions_and_over_seeds():
    n = 20_000
    for draws in (uniform(np.full(n, 7), np.arange(n)), uniform(np.arange(n), np.full(n, 7))):
        assert draws.min() >= 0
        assert draws.max() < 1
        counts = np.histogram(draws, bins=20, range=(0, 1))[0]
        chi_square = ((counts - n / 20) ** 2 / (n / 20)).sum()
        assert chi_square < 43.8  # 99.9 % quantile at 19 degrees of freedom
