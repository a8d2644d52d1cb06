"""Pixels out of image files: every colour mode a file can have against the closed form, and broken files as errors that say so."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from services.generator.images.data_uri import ImageFile, ImageKind
from services.generator.images.decode import decode
from tests.fakes.image_files import GREY, GREY_ALPHA, PALETTE, RGB, RGBA, png, saved

CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
DEPTHS = {GREY: (1, 2, 4, 8, 16), PALETTE: (1, 2, 4, 8), RGB: (8, 16), GREY_ALPHA: (8, 16), RGBA: (8, 16)}
MAX_PIXELS = 10_000
sides = st.integers(1, 17)
quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def pixels_of(data, kind=ImageKind.PNG, max_pixels=MAX_PIXELS):
    image = decode(ImageFile(kind, data), max_pixels)
    assert image.mode == "RGB"
    return np.asarray(image)


def over_white(rgb, alpha):
    return np.rint((rgb * alpha + 255.0 * (255 - alpha)) / 255)


def to_8_bits(samples, depth):
    return samples >> 8 if depth == 16 else samples * (255 // (2**depth - 1))


@quick
@given(st.data(), sides, sides, st.sampled_from([(kind, depth) for kind, all_ in DEPTHS.items() for depth in all_]))
def test_png_of_every_kind_and_depth(data, height, width, layout):
    kind, depth = layout
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    samples = random.integers(0, 2**depth, (height, width, CHANNELS[kind]))
    eight = to_8_bits(samples, depth)
    chunks = {}
    alpha = np.full((height, width, 1), 255)
    if kind == PALETTE:
        palette = random.integers(0, 256, (2**depth, 3))
        chunks["PLTE"] = palette.astype(np.uint8).tobytes()
        rgb = palette[samples[..., 0]]
        if data.draw(st.booleans(), "tRNS"):
            opacity = random.choice([0, 0, 128, 255], 2**depth)
            chunks["tRNS"] = opacity.astype(np.uint8).tobytes()
            alpha = opacity[samples]
    else:
        has_alpha = kind in (GREY_ALPHA, RGBA)
        rgb = np.broadcast_to(eight[..., : -1 if has_alpha else None], (height, width, 3))
        alpha = eight[..., -1:] if has_alpha else alpha
        if not has_alpha and layout != (RGB, 16) and data.draw(st.booleans(), "tRNS"):
            key = samples[0, 0]
            chunks["tRNS"] = key.astype(">u2").tobytes()
            alpha = np.where((samples == key).all(-1, keepdims=True), 0, 255)
    np.testing.assert_array_equal(pixels_of(png(samples, depth, kind, **chunks)), over_white(rgb, alpha))


def test_a_key_for_16_bit_colours_is_refused():
    file = png(np.full((1, 2, 3), 258), 16, RGB, tRNS=bytes(6))
    with pytest.raises(ValueError, match="a transparent colour in a PNG of 16 bits is not supported"):
        pixels_of(file)


@quick
@given(sides, sides, st.integers(0, 2**32), st.sampled_from(["RGB", "RGBA"]))
def test_lossless_webp(height, width, seed, mode):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, len(mode)), np.uint8)
    expected = pixels if mode == "RGB" else over_white(pixels[..., :3], pixels[..., 3:].astype(int))
    file = saved(pixels, "WEBP", lossless=True, exact=True)
    np.testing.assert_array_equal(pixels_of(file, ImageKind.WEBP), expected)


@quick
@given(sides, sides, st.integers(0, 2**32), st.booleans())
def test_gif_with_and_without_a_transparent_colour(height, width, seed, has_key):
    random = np.random.default_rng(seed)
    palette = random.integers(0, 256, (256, 3), np.uint8)
    indices = random.integers(0, 256, (height, width), np.uint8)
    image = Image.fromarray(indices, "P")
    image.putpalette(palette.tobytes())
    key = int(indices[0, 0])
    file = saved(image, "GIF", optimize=False, **({"transparency": key} if has_key else {}))
    alpha = np.where(indices == key, 0, 255)[..., None] if has_key else 255
    np.testing.assert_array_equal(pixels_of(file, ImageKind.GIF), over_white(palette[indices].astype(int), alpha))


@pytest.mark.parametrize("colour", [(0, 0, 0, 0), (255, 0, 0, 0), (10, 200, 30, 40), (0, 0, 0, 255), (90, 90, 90, 90)])
def test_cmyk_jpeg_as_image_programs_write_it_inverted(colour):
    file = saved(Image.new("CMYK", (16, 16), colour), "JPEG", quality=100)
    assert b"Adobe" in file
    *cmy, k = colour
    expected = [(255 - ink) * (255 - k) / 255 for ink in cmy]
    assert np.abs(pixels_of(file, ImageKind.JPEG) - expected).max() <= 3


@pytest.mark.parametrize("mode", ["L", "RGB", "YCbCr"])
def test_jpeg_in_grey_and_in_colour(mode):
    ramp = np.add.outer(np.arange(24), np.arange(40)) * 4
    pixels = ramp.astype(np.uint8) if mode == "L" else np.stack([ramp, ramp[::-1], 255 - ramp], -1).astype(np.uint8)
    file = saved(Image.fromarray(pixels).convert(mode), "JPEG", quality=100, subsampling=0)
    expected = np.broadcast_to(pixels[..., None], (24, 40, 3)) if mode == "L" else pixels
    assert np.abs(pixels_of(file, ImageKind.JPEG).astype(int) - expected).max() <= 4


UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
    9: lambda a: a,
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_an_image_is_turned_as_its_exif_data_say(kind, orientation):
    pixels = np.random.default_rng(orientation).integers(0, 256, (2, 3, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"PNG": {}, "WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}[kind]
    got = pixels_of(saved(pixels, kind, exif=exif.tobytes(), **options), ImageKind(kind)).astype(int)
    expected = UPRIGHT[orientation](pixels)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= (6 if kind == "JPEG" else 0)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_of_an_animated_file_the_first_frame_is_taken(kind):
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "lime", "blue")]
    file = saved(
        frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {})
    )
    np.testing.assert_array_equal(pixels_of(file, ImageKind(kind)), np.full((4, 5, 3), (255, 0, 0)))
