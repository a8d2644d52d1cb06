"""Takes an image file out of the URL of an image part: a base64 data URI, and nothing that would have to be fetched.

Called by `images.preparer`. Compares what the URI says of the content with the content's first bytes; decodes no pixels.
"""

import base64
import re
from dataclasses import dataclass
from enum import StrEnum

_DATA_URI = re.compile(r"data:([^;,]*);base64,", re.IGNORECASE)
_MAX_HEAD = 64
"""Characters among which the head of a data URI must end; the longest that is taken has 23."""


class ImageKind(StrEnum):
    """The kinds of file that are taken, by the names that the decoder has for them."""

    PNG = "PNG"
    JPEG = "JPEG"
    WEBP = "WEBP"
    GIF = "GIF"


_MEDIA_TYPES = {
    "image/png": ImageKind.PNG,
    "image/jpeg": ImageKind.JPEG,
    "image/jpg": ImageKind.JPEG,
    "image/webp": ImageKind.WEBP,
    "image/gif": ImageKind.GIF,
}


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file as it came, whose first bytes are those of its kind."""

    kind: ImageKind
    data: bytes


def read_data_uri(url: str, max_bytes: int) -> ImageFile:
    """The file in `url`.

    Args:
        max_bytes: of the file, after base64.
    Raises:
        ValueError: it is another kind of URL, too large, no base64, or not the image that it says it is.
    """
    head = _DATA_URI.match(url[:_MAX_HEAD])
    kind = None if head is None else _MEDIA_TYPES.get(head[1].lower())
    if head is None or kind is None:
        raise ValueError(
            "the URL must be a data URI of PNG, JPEG, WebP or GIF in base64, such as data:image/png;base64,…; nothing is fetched"
        )
    num_bytes = (len(url) - head.end()) // 4 * 3
    if num_bytes > max_bytes + 2:  # as far as can be told before the padding is seen
        raise ValueError(_too_large(num_bytes, max_bytes))
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
    except ValueError:
        raise ValueError("the data URI is not valid base64") from None
    if len(data) > max_bytes:
        raise ValueError(_too_large(len(data), max_bytes))
    found = _kind_of(data)
    if found is not kind:
        raise ValueError(
            f"the data URI says {head[1].lower()}, its content is {found or 'no image of a kind that is taken'}"
        )
    return ImageFile(kind, data)


def _too_large(num_bytes: int, max_bytes: int) -> str:
    return f"the file has {num_bytes} bytes; at most {max_bytes} are taken (--max-image-bytes)"


def _kind_of(data: bytes) -> ImageKind | None:
    """By the bytes with which files of each kind begin."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return ImageKind.PNG
    if data.startswith(b"\xff\xd8\xff"):
        return ImageKind.JPEG
    if data.startswith((b"GIF87a", b"GIF89a")):
        return ImageKind.GIF
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return ImageKind.WEBP
    return None
