"""Images under the scheduler: each request gets its own image's tokens, whatever the cache of rows and the chunks are."""

import hashlib
import random

import pytest

from services.generator.core.images import Pixels, PromptImage
from services.generator.core.request import FinishReason
from services.generator.core.specs import ImageLimits
from services.generator.metrics import GeneratorMetrics
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from tests.generator.test_scheduler import VOCAB, Engine

PLACEHOLDER = VOCAB
"""An id that the fake model never samples."""


def pixels_of(name: int, num_rows: int) -> Pixels:
    return Pixels(num_rows, 2, bytes([name]) * (6 * num_rows))


def prompt_with(parts):
    """A prompt and its images, from token ids and (name, rows) of images."""
    ids, images = [], []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        name, num_rows = part
        pixels = pixels_of(name, num_rows)
        digest = hashlib.sha256(pixels.data).digest()
        images.append(PromptImage(len(ids), (1, 1, num_rows), digest, pixels))
        ids += [PLACEHOLDER] * num_rows
    return ids, tuple(images)


def make_engine(num_cached_rows=20, max_encoded_rows=8, *, has_axes=False, **sizes):
    return Engine(images=ImageLimits(PLACEHOLDER, num_cached_rows, max_encoded_rows, has_axes), **sizes)


def submit(engine, parts, max_tokens=3, **options):
    ids, images = prompt_with(parts)
    return engine.submit(ids, max_tokens, images=images, **options)


def check_outputs(engine, *requests):
    for request in requests or engine.requests:
        if engine.ends[request] != [FinishReason.ABORT]:
            assert engine.outputs[request] == engine.expected(request)
            assert engine.ends[request] == [FinishReason.LENGTH]


def encoded(engine):
    return [digest for step in engine.runner.encoded for digest in step]


@pytest.mark.parametrize("seed", range(60))
def test_random_runs_give_each_request_its_own_images_tokens(seed):
    rng = random.Random(seed)
    block_size = rng.choice([1, 4, 16])
    engine = make_engine(
        rng.choice([12, 30]),
        rng.choice([1, 6, 100]),
        num_blocks=-(-60 // block_size) + rng.choice([0, 1, 40]),
        block_size=block_size,
        max_num_seqs=rng.choice([1, 3, 7]),
        budget=rng.choice([1, 5, 16, 200]),
        max_len=60,
        max_in_flight=rng.choice([1, 2, 3]),
        cache=rng.random() < 0.8,
    )
    sizes = {name: rng.randint(1, 6) for name in range(4)}
    shared = [rng.randrange(VOCAB) for _ in range(8)]
    for _ in range(20):
        names = [rng.randrange(4) for _ in range(rng.choice([0, 1, 1, 2]))]
        parts = shared[: rng.randint(0, 8)] + [(name, sizes[name]) for name in names]
        parts += [rng.randrange(VOCAB) for _ in range(rng.randint(0 if parts else 1, 12))]
        rng.shuffle(parts) if rng.random() < 0.3 else None
        submit(engine, parts, rng.randint(1, 12))
        if rng.random() < 0.1:
            engine.abort(rng.randrange(len(engine.requests)))
        for _ in range(rng.randint(0, 5)):
            engine.step()
    engine.drain()
    check_outputs(engine)
    stats = engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert stats.num_encoded_images == len(encoded(engine))


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7, 64])
def test_a_chunk_may_cut_an_image_anywhere_and_it_is_encoded_once(budget):
    engine = make_engine(budget=budget)
    request = submit(engine, [1, 2, (0, 6), 3, (1, 5), 4])
    engine.drain()
    check_outputs(engine, request)
    assert len(encoded(engine)) == 2
    assert engine.scheduler.stats().num_encoded_rows == 11


def test_an_image_is_encoded_once_for_all_requests_that_show_it_at_any_place():
    engine = make_engine(cache=False)
    requests = [submit(engine, [*range(start), (0, 4), 9, (0, 4)]) for start in range(1, 5)]
    engine.drain()
    late = submit(engine, [7, (0, 4)])
    engine.drain()
    check_outputs(engine, *requests, late)
    assert len(encoded(engine)) == 1
    assert engine.scheduler.stats().num_image_hits == 4 * 2 + 1 - 1


def test_pixels_are_in_memory_once():
    engine = make_engine(max_num_seqs=1)
    first, second = (submit(engine, [start, (0, 4)]) for start in (1, 2))
    held = [engine.scheduler._queues.find(("f", key)).request.images[0].pixels for key in (first, second)]
    assert held[0] is held[1]


def test_encoding_in_a_step_is_bounded_and_a_larger_image_is_alone():
    engine = make_engine(num_cached_rows=40, max_encoded_rows=8, budget=64)
    requests = [submit(engine, [(name, size)], 1) for name, size in enumerate([4, 4, 1, 12, 3, 5])]
    engine.drain()
    check_outputs(engine, *requests)
    digests = {prompt_with([(name, size)])[1][0].digest: size for name, size in enumerate([4, 4, 1, 12, 3, 5])}
    assert [[digests[digest] for digest in step] for step in engine.runner.encoded] == [[4, 4], [1], [12], [3, 5]]


def test_text_before_an_image_that_has_to_wait_for_the_encoder_is_computed_meanwhile():
    engine = make_engine(max_encoded_rows=4, budget=64, max_in_flight=1)
    first, second = submit(engine, [(0, 4), 1], 1), submit(engine, [5, 6, (1, 4), 1], 1)
    plan = engine.scheduler.schedule()
    assert plan.num_new_tokens.tolist() == [2, 5]
    assert [image.digest for image, _ in plan.images.encodes] == [engine.requests[first].images[0].digest]
    assert second in engine.requests


def test_an_image_that_the_prefix_cache_covers_is_not_encoded():
    engine = make_engine(num_cached_rows=6, block_size=4)
    first = submit(engine, [1, 2, (0, 6), 3, 4, 5])
    engine.drain()
    other = submit(engine, [1, 2, (1, 6), 3, 4, 5])  # takes the rows of the first one
    engine.drain()
    again = submit(engine, [1, 2, (0, 6), 3, 4, 6])
    engine.drain()
    check_outputs(engine, first, other, again)
    assert len(encoded(engine)) == 2
    assert engine.scheduler.stats().num_prefix_hit_tokens == 8


@pytest.mark.parametrize(("place", "num_hits"), [(0, 0), (3, 0), (4, 4), (7, 4), (9, 8)])
def test_only_text_before_another_image_is_shared(place, num_hits):
    engine = make_engine(block_size=4)
    tail = [7] * 9
    for name in (0, 1):
        submit(engine, [*range(place), (name, 5), *tail])
        engine.drain()
    check_outputs(engine)
    assert engine.scheduler.stats().num_prefix_hit_tokens == num_hits
    submit(engine, [*range(place), (1, 5), *tail, 1])
    engine.drain()
    assert engine.scheduler.stats().num_prefix_hit_tokens == num_hits + (place + 5 + len(tail)) // 4 * 4


def test_who_finds_no_rows_waits_and_only_text_passes(monkeypatch):
    attach, looked_up = KVCacheManager.attach_prefix, []
    monkeypatch.setattr(
        KVCacheManager,
        "attach_prefix",
        lambda cache, who: (looked_up.append(who.request.request_id), attach(cache, who)),
    )
    engine = make_engine(num_cached_rows=10, max_encoded_rows=100, budget=8, max_in_flight=1)
    first, blocked, small = (submit(engine, [image], 2) for image in [(0, 6), (1, 10), (2, 1)])
    text = submit(engine, [1], 2)
    engine.step()
    assert len(encoded(engine)) == 1
    assert engine.outputs[text]
    assert looked_up == [first, blocked, text]  # so that a queue of images costs a step next to nothing
    engine.drain()
    check_outputs(engine, first, blocked, small, text)


def test_an_image_used_longest_ago_gives_way():
    engine = make_engine(num_cached_rows=8, cache=False)
    for name in (0, 1, 0, 2, 0, 1):
        submit(engine, [(name, 4)])
        engine.drain()
    names = {prompt_with([(name, 4)])[1][0].digest: name for name in range(3)}
    assert [names[digest] for digest in encoded(engine)] == [0, 1, 2, 1]
    check_outputs(engine)


@pytest.mark.parametrize(
    ("ids", "images"),
    [
        ([1, PLACEHOLDER], ()),
        ([1, PLACEHOLDER, PLACEHOLDER], prompt_with([1, (0, 1)])[1]),
        ([1, 2], prompt_with([1, (0, 1)])[1]),
        ([1, PLACEHOLDER], prompt_with([(0, 1)])[1]),
        ([1, PLACEHOLDER], prompt_with([1, (0, 2)])[1]),
        ([1, PLACEHOLDER], prompt_with([1, (0, 1)])[1] * 2),
        ([1, PLACEHOLDER], (PromptImage(1, (1, 1, 1), b"d", Pixels(2, 2, b"too short")),)),
        prompt_with([(0, 6), (1, 6), (2, 6), (3, 6)]),
    ],
)
def test_images_that_do_not_fit_prompt_or_cache_end_the_request_at_once(ids, images):
    engine = make_engine()
    request = engine.submit(ids, 1, images=images)
    assert engine.ends[request] == [FinishReason.ERROR]


def test_the_same_image_many_times_fits_where_one_does():
    engine = make_engine(num_cached_rows=6)
    request = submit(engine, [(0, 6), 1] * 4)
    engine.drain()
    check_outputs(engine, request)


def test_a_model_without_images_refuses_them():
    engine = Engine()
    ids, images = prompt_with([(0, 3)])
    assert engine.ends[engine.submit(ids, 1, images=images)] == [FinishReason.ERROR]


def test_an_image_that_cannot_be_encoded_ends_its_own_requests_alone(monkeypatch):
    engine = make_engine()
    bad = prompt_with([(3, 2)])[1][0].digest
    embed = engine.runner._embed

    def fail(plan):
        if plan.images is not None and any(image.digest == bad for image, _ in plan.images.encodes):
            raise RuntimeError("cannot encode")
        return embed(plan)

    monkeypatch.setattr(engine.runner, "_embed", fail)
    good = [submit(engine, [1, (name, 4), 2], 5) for name in range(3)]
    broken = submit(engine, [1, (3, 2)])
    engine.drain()
    check_outputs(engine, *good)
    assert engine.ends[broken] == [FinishReason.FAILED]


def test_after_a_failed_step_one_whose_rows_another_holds_gets_them(monkeypatch):
    engine = make_engine(num_cached_rows=6)
    first = submit(engine, [(0, 6), 1], 9)
    while len(engine.outputs[first]) < 2:
        engine.step()
    embed, failures = engine.runner._embed, iter([RuntimeError("once")])

    def fail_once(plan):
        if plan.images is not None and plan.images.encodes:
            for error in failures:
                raise error
        return embed(plan)

    monkeypatch.setattr(engine.runner, "_embed", fail_once)
    second = submit(engine, [(1, 6), 2])  # finds the rows that the first one has no need of any more
    engine.drain()
    check_outputs(engine, first, second)


def test_metrics_say_what_the_encoder_did_and_what_it_was_spared():
    engine, metrics = make_engine(cache=False), GeneratorMetrics()
    metrics.watch(engine.scheduler.stats, num_restarts=lambda: 0, num_graphs=lambda: 0)
    for name in (0, 1, 0):
        submit(engine, [(name, 4 + name)])
        engine.drain()
    read = {
        name: metrics.all.registry.get_sample_value(f"trivium_generator_{name}")
        for name in ("encoded_images_total", "encoded_image_rows_total", "image_hits_total", "image_rows")
    }
    assert read == {"encoded_images_total": 2, "encoded_image_rows_total": 9, "image_hits_total": 1, "image_rows": 9}
