"""Decodes an image file to RGB, once its header says that it is small enough: first frame, turned as its EXIF data say.

Called by `images.preparer`, on threads of its own. The only place that knows Pillow's ways to fail; colours are `images.colours`'.
"""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError

from services.generator.images.colours import to_rgb
from services.generator.images.data_uri import ImageFile

MAX_ASPECT_RATIO = 200
"""Between the sides of an image, for every model. Qwen2-VL's reference refuses more; where the shorter side gets a fixed length, as
in CLIP's, the longer one of a thinner image would fill memory."""

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What brings the pixels upright, by the value of the EXIF field."""

_WARNING_FILTERS = threading.Lock()
"""They belong to the whole process."""


def decode(file: ImageFile, max_pixels: int) -> Image.Image:
    """The first frame of `file` as an upright RGB image.

    Raises:
        ValueError: it cannot be read, or its header says that it is too large or too thin.
    """
    with _open(file) as image:
        _check_size(image.size, max_pixels)
        with _refusing(file):
            image.load()
            rgb = to_rgb(image, file)
        turn = _TURNS.get(_orientation(image))
    return rgb if turn is None else rgb.transpose(turn)


def _open(file: ImageFile) -> Image.Image:
    """The image with its header read; its own limit of pixels is far above ours, so that its warning says nothing new."""
    with _refusing(file), _silent():
        return Image.open(io.BytesIO(file.data), formats=[file.kind])


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise ValueError(
            f"the image has {width}x{height} pixels; at most {max_pixels} in all are taken (--max-image-pixels)"
        )
    if max(size) > MAX_ASPECT_RATIO * min(size):
        raise ValueError(
            f"the image has {width}x{height} pixels; one side may be at most {MAX_ASPECT_RATIO} times the other"
        )


def _orientation(image: Image.Image) -> int:
    """Read after the pixels, since a PNG may have it behind them; damaged data say nothing."""
    with _silent():
        try:
            value = image.getexif().get(_ORIENTATION)
        except Exception:  # noqa: BLE001 - as in `_refusing`
            return 1
    return value if isinstance(value, int) else 1


@contextmanager
def _refusing(file: ImageFile) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - broken files make decoders raise almost anything
        if isinstance(error, Image.DecompressionBombError):
            raise ValueError("the image has far too many pixels") from None
        raise ValueError(f"the {file.kind} file cannot be read: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """For a client: the decoder's words, where they are about the file."""
    if isinstance(error, UnidentifiedImageError):
        return "its header is broken or cut off"
    return str(error) if isinstance(error, OSError | ValueError | SyntaxError) and error.args else "it is broken"


@contextmanager
def _silent() -> Iterator[None]:
    """Without the decoder's warnings, which would go to standard error."""
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
