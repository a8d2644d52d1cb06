"""Sharing of KV by content: who finds what, what never meets, and that a found prefix changes no answer."""

import dataclasses

import pytest

from services.generator.core.block_keys import BlockKeys, ImageSpan, PrefixSalt
from services.generator.core.request import Request, SamplingParams
from services.generator.core.sequence import Sequence
from services.generator.core.specs import KVCacheSpec
from services.generator.engine.build import build_model
from services.generator.engine.weights_digest import weights_digest
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from tests.generator.driving import OfflineEngine
from tests.generator.test_parity import settings_for
from tests.generator.test_scheduler import Engine

SIZE = 4


def keys_of(tokens, salt=PrefixSalt(), *, base=b"w", dtype="float32", size=SIZE):  # noqa: B008 - immutable
    keys: list[bytes] = []
    BlockKeys(base, dtype, size).extend(keys, list(tokens), salt)
    return keys


def num_shared(a, b):
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_keys_are_of_full_blocks_and_depend_on_all_tokens_before():
    assert len(keys_of(range(11))) == 2
    assert num_shared(keys_of(range(12)), keys_of([*range(8), 9, 9, 9, 9])) == 2
    assert num_shared(keys_of(range(12)), keys_of([7, *range(1, 12)])) == 0
    assert keys_of(range(4)) != keys_of(range(4, 8))


def test_keys_are_the_same_however_they_are_extended():
    keys: list[bytes] = []
    maker = BlockKeys(b"w", "float32", SIZE)
    tokens = list(range(19))
    for end in (3, 4, 9, 16, 19):
        maker.extend(keys, tokens[len(keys) * SIZE : end], PrefixSalt())
    assert keys == keys_of(tokens)


@pytest.mark.parametrize(
    "other",
    [
        {"base": b"v"},
        {"dtype": "bfloat16"},
        {"salt": PrefixSalt(adapter_digest=b"a")},
        {"salt": PrefixSalt(cache_salt="tenant")},
        {"salt": PrefixSalt(cache_salt="")},
        {"salt": PrefixSalt(images=(ImageSpan(0, b"i"),))},
    ],
)
def test_whatever_else_determines_kv_changes_every_key(other):
    assert num_shared(keys_of(range(12)), keys_of(range(12), **other)) == 0


def test_no_two_salts_are_confused():
    salts = [
        PrefixSalt(),
        PrefixSalt(adapter_digest=b"x"),
        PrefixSalt(cache_salt="x"),
        PrefixSalt(cache_salt="+x"),
        PrefixSalt(adapter_digest=b"+x"),
        PrefixSalt(adapter_digest=b"x", cache_salt="x"),
    ]
    assert len({keys_of(range(4), salt)[0] for salt in salts}) == len(salts)


def test_text_before_an_image_is_shared_and_its_place_and_content_count():
    def with_image(position, digest):
        return keys_of(range(20), PrefixSalt(images=(ImageSpan(position, digest),)))

    assert num_shared(with_image(9, b"a"), keys_of(range(20))) == 2
    assert num_shared(with_image(9, b"a"), with_image(9, b"b")) == 2
    assert num_shared(with_image(9, b"a"), with_image(10, b"a")) == 2
    assert with_image(9, b"a") == with_image(9, b"a")


# --- the ledger ---


def ledger(num_blocks=16):
    spec = KVCacheSpec(num_blocks, SIZE)
    return KVCacheManager(spec, BlockKeys(b"w", "float32", SIZE))


def computed(kv, tokens, **fields):
    """A sequence that went through the ledger and has all its tokens computed."""
    sequence = Sequence(Request("f", 0, list(tokens), SamplingParams(max_tokens=1)), **fields)
    kv.attach_prefix(sequence)
    found = sequence.num_computed_tokens
    assert kv.grow(sequence, len(sequence.request.prompt_token_ids))
    sequence.num_computed_tokens = sequence.num_prompt_tokens
    kv.publish(sequence)
    return sequence, found


def test_full_blocks_are_found_while_held_and_after():
    kv = ledger()
    first, _ = computed(kv, range(10))
    second, found = computed(kv, range(10))
    assert found == 8
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]
    kv.free(first)
    kv.free(second)
    kv.check_integrity([])
    assert computed(kv, range(10))[1] == 8


def test_the_last_token_is_always_computed():
    kv = ledger()
    computed(kv, range(8))
    assert computed(kv, range(8))[1] == 4


def test_a_salt_separates():
    kv = ledger()
    computed(kv, range(10), salt=PrefixSalt(cache_salt="a"))
    assert computed(kv, range(10))[1] == 0
    assert computed(kv, range(10), salt=PrefixSalt(cache_salt="b"))[1] == 0
    assert computed(kv, range(10), salt=PrefixSalt(cache_salt="a"))[1] == 8


def test_the_least_recently_used_content_is_given_up_first_and_tails_before_heads():
    kv = ledger(num_blocks=6)
    old, _ = computed(kv, range(8))
    old_blocks = list(old.block_ids)
    kv.free(old)
    new, _ = computed(kv, range(100, 112))
    kv.free(new)
    filler, _ = computed(kv, range(200, 208))  # one block never had content, so one with content has to go
    assert old_blocks[1] in filler.block_ids
    kv.free(filler)
    assert computed(kv, range(8))[1] == 4
    assert computed(kv, range(100, 112))[1] == 8


def test_reset_forgets_everything():
    kv = ledger()
    held, _ = computed(kv, range(10))
    kv.reset_cache()
    after, found = computed(kv, range(10))
    assert found == 0
    kv.check_integrity([held, after])


def test_blocks_without_known_content_are_never_found():
    kv = ledger()
    sequence = Sequence(Request("f", 0, list(range(8)), SamplingParams(max_tokens=1)))
    kv.attach_prefix(sequence)
    kv.grow(sequence, 8)
    sequence.num_computed_tokens = 6
    kv.publish(sequence)
    assert computed(kv, range(12))[1] == 4


# --- the scheduler ---


def test_identical_prompts_of_one_batch_share_their_full_blocks():
    engine = Engine(num_blocks=32, budget=200, max_in_flight=1)
    ids = [engine.submit(list(range(18)), 2) for _ in range(4)]
    engine.step()
    assert engine.scheduler.stats().num_used_blocks == 4 + 4  # four shared, a tail each
    engine.drain()
    assert all(engine.outputs[i] == engine.expected(i) for i in ids)


def test_a_shared_system_prompt_is_found_by_all_but_the_first():
    engine = Engine(num_blocks=200, block_size=16, budget=512, max_len=400, max_num_seqs=8)
    system = [n % 50 for n in range(200)]
    for n in range(20):
        engine.submit([*system, *[(n * 7 + k) % 50 for k in range(20)]], 3)
    engine.drain()
    stats = engine.scheduler.stats()
    assert stats.num_prefix_queried_tokens == 20 * 220
    assert stats.num_prefix_hit_tokens == 19 * 192
    assert all(engine.outputs[i] == engine.expected(i) for i in range(20))


def test_recompute_after_preemption_is_no_query():
    engine = Engine(num_blocks=10, block_size=4, max_num_seqs=4, max_len=40)
    for n in range(4):
        engine.submit([n] * 8, 30)
    engine.drain()
    stats = engine.scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.num_prefix_queried_tokens == 4 * 8


def test_an_answer_that_continues_a_conversation_finds_its_own_earlier_answer():
    engine = Engine(num_blocks=64, block_size=4)
    engine.submit([1, 2, 3], 20)
    engine.drain()
    engine.submit([1, 2, 3, *engine.outputs[0], 4], 5)
    engine.drain()
    assert engine.scheduler.stats().num_prefix_hit_tokens == 20  # 22 tokens were computed before: five full blocks


# --- the numbers ---


@pytest.mark.parametrize("chunk", [16, 24, 256])
def test_cold_equals_warm_on_a_real_model(tiny_llama, chunk):
    engine = OfflineEngine(build_model(settings_for(tiny_llama, max_num_batched_tokens=chunk)))
    prompts = [list(range(90)), [*range(60), 5, 5, 5], list(range(33))]
    cold = [
        OfflineEngine(build_model(settings_for(tiny_llama, enable_prefix_caching=False))).generate([p], max_tokens=40)[
            0
        ]
        for p in prompts
    ]
    first = engine.generate(prompts, max_tokens=40)
    second = engine.generate(prompts, max_tokens=40)
    assert first == cold
    assert second == cold
    assert engine.stats().num_prefix_hit_tokens > sum(map(len, prompts)) / 2


def test_equal_files_give_equal_roots_and_other_weights_another(tiny_llama, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copy / name).write_bytes((tiny_llama / name).read_bytes())
    assert weights_digest(copy) == weights_digest(tiny_llama)
    changed = bytearray((copy / "model.safetensors").read_bytes())
    changed[-1] ^= 1
    (copy / "model.safetensors").write_bytes(changed)
    assert weights_digest(copy) != weights_digest(tiny_llama)


def test_salts_are_part_of_every_field_of_the_type():
    """A new field of PrefixSalt that is forgotten in the keys would let two contents meet."""
    assert {field.name for field in dataclasses.fields(PrefixSalt)} == {"adapter_digest", "cache_salt", "images"}
