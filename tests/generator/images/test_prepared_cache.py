"""Files that come again: the same image without another decode, within the bound, and refused as ever where they have to be."""

import asyncio

import numpy as np
import pytest

from services.generator.app import build_service
from services.generator.images import preparer as preparer_module
from services.generator.images.prepared_cache import PreparedCache
from services.generator.images.preparer import ImagePreparer, IntakeLimits
from services.generator.settings import GeneratorSettings
from shared.contracts.conversation import ChatMessage, TemplateFields
from shared.errors import ImageInvalidError
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.image_files import RGB, data_uri, image_part, png
from tests.fakes.row_per_pixel import RowPerPixel
from tests.fakes.tiny_vision import save_tiny_llava

LIMITS = IntakeLimits(3, 2000, 400)


def file_of(value, height=2, width=5):
    """A file of 30 bytes of pixels, unless of another size."""
    return png(np.full((height, width, 3), value), colour_type=RGB)


@pytest.fixture
def decoded(monkeypatch):
    """The contents of all files that were decoded."""
    contents = []
    original = preparer_module.decode

    def decode(file, max_pixels):
        contents.append(file.data)
        return original(file, max_pixels)

    monkeypatch.setattr(preparer_module, "decode", decode)
    return contents


def prepare(preparer, *contents, media_type="image/png"):
    urls = {str(number): data_uri(content, media_type) for number, content in enumerate(contents)}
    return asyncio.run(preparer.prepare(urls))


def test_a_file_that_comes_again_is_not_decoded_again(decoded):
    cache = PreparedCache(1000)
    preparer = ImagePreparer(RowPerPixel(1), LIMITS, cache)
    first, other, again = prepare(preparer, file_of(1), file_of(2), file_of(1))
    assert prepare(preparer, file_of(2)) == [other]
    assert again is first
    assert first.pixels.data == b"\1" * 30
    assert other.pixels.data == b"\2" * 30
    assert decoded == [file_of(1), file_of(2)]
    assert (cache.num_hits, cache.num_misses, cache.num_bytes) == (2, 2, 60)


def test_the_image_that_was_not_used_for_longest_gives_way(decoded):
    cache = PreparedCache(70)
    preparer = ImagePreparer(RowPerPixel(1), LIMITS, cache)
    for value in (1, 2, 1, 3, 1, 2):  # 3 takes the place of 2, which takes that of 3
        prepare(preparer, file_of(value))
        assert cache.num_bytes <= 70
    assert decoded == [file_of(value) for value in (1, 2, 3, 2)]
    assert cache.num_bytes == 60


def test_an_image_beyond_the_bound_drives_no_other_out(decoded):
    preparer = ImagePreparer(RowPerPixel(1), LIMITS, PreparedCache(70))
    large = file_of(9, height=5)
    prepare(preparer, file_of(1), large, large, file_of(1))
    assert decoded == [file_of(1), large, large]


def test_none_is_kept_where_the_cache_is_off(decoded):
    cache = PreparedCache(0)
    prepare(ImagePreparer(RowPerPixel(1), LIMITS, cache), file_of(1), file_of(1))
    assert len(decoded) == 2
    assert (cache.num_hits, cache.num_misses, cache.num_bytes) == (0, 2, 0)


def test_two_threads_may_bring_the_same_image():
    cache = PreparedCache(1000)
    (image,) = prepare(ImagePreparer(RowPerPixel(1), LIMITS, PreparedCache(0)), file_of(1))
    cache.put(b"key", image)
    cache.put(b"key", image)
    assert cache.num_bytes == 30


@pytest.mark.parametrize(
    ("content", "media_type", "reason"),
    [
        (file_of(1), "image/jpeg", "says image/jpeg, its content is PNG"),
        (file_of(1, width=201), "image/png", "at most 400 in all"),
        (file_of(1)[:-30], "image/png", "cannot be read"),
    ],
    ids=["another type", "too large", "cut off"],
)
def test_a_refusal_is_the_same_before_and_after_the_file_is_known(content, media_type, reason):
    preparer = ImagePreparer(RowPerPixel(1), LIMITS, PreparedCache(1000))

    def refusal():
        with pytest.raises(ImageInvalidError, match=reason) as error:
            prepare(preparer, content, media_type=media_type)
        return error.value.message

    first = refusal()
    prepare(preparer, file_of(1))
    assert refusal() == first


@pytest.mark.parametrize(("flags", "hits", "kept"), [({}, 2, 768), ({"image_cache_bytes": 767}, 0, 0)])
def test_the_flag_bounds_the_cache_and_metrics_tell_of_it(tmp_path, flags, hits, kept):
    folder = save_tiny_llava(tmp_path)
    service = build_service(GeneratorSettings(model=str(folder), **flags), FakeEngine(lambda *_: []))
    message = ChatMessage.model_validate({"role": "user", "content": [image_part()] * 3})
    prompt = asyncio.run(service.prompts.from_chat([message], TemplateFields()))
    assert len({image.digest for image in prompt.images}) == 1
    read = {
        name: service.metrics.all.registry.get_sample_value(f"trivium_generator_prepared_image_{name}")
        for name in ("hits_total", "misses_total", "bytes")
    }
    assert read == {"hits_total": hits, "misses_total": 3 - hits, "bytes": kept}  # of 16 x 16 pixels
