"""Files that are cut off, damaged, too large or too thin: an error that says so, never another exception or a warning."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from services.generator.images.data_uri import ImageFile, ImageKind
from services.generator.images.decode import decode
from tests.fakes.image_files import RGB, png, saved

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
EXIF = Image.Exif()
EXIF[0x0112] = 6
FILES = {
    ImageKind.PNG: saved(PIXELS, "PNG", exif=EXIF.tobytes()),
    ImageKind.JPEG: saved(PIXELS, "JPEG", exif=EXIF.tobytes()),
    ImageKind.WEBP: saved(PIXELS, "WEBP", lossless=True, exif=EXIF.tobytes()),
    ImageKind.GIF: saved(PIXELS, "GIF"),
}


def try_decode(kind, data):
    """The pixels, or None where the file is refused."""
    try:
        return np.asarray(decode(ImageFile(kind, data), 10_000))
    except ValueError:
        return None


@pytest.mark.parametrize("kind", FILES)
def test_a_file_cut_off_anywhere_is_refused_unless_its_pixels_are_whole(kind):
    whole = try_decode(kind, FILES[kind])
    upright = np.asarray(Image.open(io.BytesIO(FILES[kind])).convert("RGB"))
    outcomes = [try_decode(kind, FILES[kind][:length]) for length in range(len(FILES[kind]))]
    assert whole is not None
    assert outcomes[0] is None
    assert outcomes[len(outcomes) // 2] is None
    for pixels in outcomes:
        assert pixels is None or np.array_equal(pixels, whole) or np.array_equal(pixels, upright)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_bytes_never_raise_anything_else(kind, damages):
    data = bytearray(FILES[kind])
    for place, value in damages:
        data[place % len(data)] = value
    try_decode(kind, bytes(data))


@pytest.mark.filterwarnings("error")
def test_damaged_exif_data_leave_the_image_as_it_is_without_a_warning():
    upright, broken = (saved(PIXELS, "JPEG", exif=exif) for exif in (b"", EXIF.tobytes()[:-9]))
    assert b"Exif" in broken
    np.testing.assert_array_equal(try_decode(ImageKind.JPEG, broken), try_decode(ImageKind.JPEG, upright))


@pytest.mark.parametrize("exif", [b"", b"II", b"II*\0", b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\x01"])
def test_damaged_exif_data_of_any_kind_leave_it(exif):
    file = png(PIXELS, colour_type=RGB, eXIf=exif)
    np.testing.assert_array_equal(try_decode(ImageKind.PNG, file), PIXELS)


@pytest.mark.parametrize("kind", FILES)
def test_a_broken_header_is_said_in_words_that_are_always_the_same(kind):
    with pytest.raises(ValueError, match=f"^the {kind} file cannot be read: its header is broken or cut off$"):
        decode(ImageFile(kind, FILES[kind][:3]), 10_000)


def test_a_photo_with_a_second_picture_in_it_is_the_first():
    file = saved(
        Image.new("RGB", (4, 3), "red"), "MPO", save_all=True, append_images=[Image.new("RGB", (4, 3), "blue")]
    )
    red, _, blue = try_decode(ImageKind.JPEG, file)[0, 0]
    assert (red > 250, blue < 5) == (True, True)


def test_a_small_file_with_very_many_pixels_is_refused_by_its_header():
    file = png(np.zeros((12_000, 12_000, 1), np.uint8), 1)
    assert len(file) < 100_000
    with pytest.raises(
        ValueError, match=r"12000x12000 pixels; at most 40000000 in all are taken \(--max-image-pixels\)"
    ):
        decode(ImageFile(ImageKind.PNG, file), 40_000_000)


def test_a_header_that_claims_more_pixels_than_the_decoder_opens_is_refused():
    file = bytearray(png(np.zeros((1, 1, 1), np.uint8)))
    file[16:24] = (60_000).to_bytes(4) * 2
    with pytest.raises(ValueError, match=r"cannot be read|far too many pixels"):
        decode(ImageFile(ImageKind.PNG, bytes(file)), 40_000_000)


@pytest.mark.parametrize("size", [(1, 201), (201, 1), (2, 401)])
def test_a_thin_image_is_refused(size):
    with pytest.raises(ValueError, match="one side may be at most 200 times the other"):
        decode(ImageFile(ImageKind.PNG, png(np.zeros((*size, 3)), 8, RGB)), 10_000)


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1)])
def test_an_image_that_is_just_not_too_thin_is_taken(size):
    assert decode(ImageFile(ImageKind.PNG, png(np.zeros((*size, 3)), 8, RGB)), 10_000).size == size[::-1]
