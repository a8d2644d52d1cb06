"""The block ledger: random growth and release lose no block and give none twice."""

import random

import pytest

from services.generator.core.request import Request, SamplingParams
from services.generator.core.sequence import Sequence
from services.generator.core.specs import KVCacheSpec
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from shared.errors import InternalError


def sequence():
    return Sequence(Request("f", 0, [1], SamplingParams(max_tokens=1)))


@pytest.mark.parametrize("seed", range(50))
def test_random_operations_keep_the_invariant(seed):
    rng = random.Random(seed)
    spec = KVCacheSpec(num_blocks=rng.randint(1, 30), block_size=rng.randint(1, 8))
    ledger = KVCacheManager(spec)
    sequences = [sequence() for _ in range(5)]
    for _ in range(200):
        chosen = rng.choice(sequences)
        if rng.random() < 0.3:
            ledger.free(chosen)
        else:
            num_tokens = rng.randint(1, 60)
            free_before, held_before = ledger.num_free_blocks, list(chosen.block_ids)
            has_grown = ledger.grow(chosen, num_tokens)
            needed = max(0, -(-num_tokens // spec.block_size) - len(held_before))
            assert has_grown == (needed <= free_before)
            assert len(chosen.block_ids) == len(held_before) + (needed if has_grown else 0)
            assert chosen.block_ids[: len(held_before)] == held_before
        ledger.check_integrity(sequences)
    for item in sequences:
        ledger.free(item)
    assert ledger.num_free_blocks == spec.num_blocks


def test_integrity_check_sees_a_block_held_twice():
    ledger = KVCacheManager(KVCacheSpec(4, 2))
    a, b = sequence(), sequence()
    ledger.grow(a, 4)
    b.block_ids = list(a.block_ids)
    with pytest.raises(InternalError):
        ledger.check_integrity([a, b])
