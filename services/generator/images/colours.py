"""Any colour mode that a decoded file may have to RGB: what is transparent shows white.

Called by `images.decode`. The decoder converts where it is exact; transparency by a key is done here, where it is not.
"""

import numpy as np
from PIL import Image

from services.generator.images.data_uri import ImageFile, ImageKind

BACKGROUND = (255, 255, 255)
"""What transparent pixels are laid over."""

_WITH_ALPHA = frozenset({"LA", "PA", "RGBA", "La", "RGBa"})
_OPAQUE = frozenset({"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"})
_16_BITS = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_BIT_DEPTH_AT = 24
"""Byte of a PNG file with the bits of a sample: its first chunk always stands in the same place."""


def to_rgb(image: Image.Image, file: ImageFile) -> Image.Image:
    """A loaded image as RGB over white; of 16 bits the upper 8 are kept.

    Raises:
        ValueError: a mode that cannot be converted rightly.
    """
    if image.mode in _WITH_ALPHA or (image.mode == "P" and "transparency" in image.info):
        return _over_white(image.convert("RGBA"))
    if image.mode in _16_BITS:
        rgb = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    elif image.mode in _OPAQUE:
        rgb = image.convert("RGB")
    else:
        raise ValueError(f"colour mode {image.mode} is not supported")
    if "transparency" in image.info:
        rgb.paste(BACKGROUND, mask=_mask_of_key(image, file))
    return rgb


def _over_white(image: Image.Image) -> Image.Image:
    rgb = Image.new("RGB", image.size, BACKGROUND)
    rgb.paste(image, mask=image.getchannel("A"))
    return rgb


def _mask_of_key(image: Image.Image, file: ImageFile) -> Image.Image:
    """Where the image has the one value that means transparent, which is a sample as it stands in the file, of 1 to 16 bits."""
    key = image.info["transparency"]
    depth = file.data[_BIT_DEPTH_AT] if file.kind is ImageKind.PNG else 8
    samples = np.asarray(image)
    if image.mode == "RGB":
        if depth == 16:  # the decoder kept the upper bits alone
            raise ValueError("a transparent colour in a PNG of 16 bits is not supported; use an alpha channel")
        return Image.fromarray((samples == key).all(axis=-1))
    scale = 255 // (2**depth - 1) if 1 < depth < 8 else 1  # as the decoder spreads samples over 8 bits
    return Image.fromarray(samples == key * scale)
