"""Image files for tests: PNGs of any sample depth written byte by byte, and whole files as data URIs."""

import base64
import io
import struct
import zlib

import numpy as np
from PIL import Image

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
"""Colour types of PNG."""


def png(samples, depth=8, colour_type=GREY, **chunks):
    """A PNG of `samples` [height, width, channels], with further chunks such as `tRNS` before its pixels."""
    height, width, _ = samples.shape
    bits = np.unpackbits(samples.astype(">u2").reshape(-1, 1).view(np.uint8), axis=1)[:, 16 - depth :]
    rows = np.packbits(bits.reshape(height, -1), axis=1)
    data = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    parts = [("IHDR", header), *chunks.items(), ("IDAT", zlib.compress(data)), ("IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name.encode(), content) for name, content in parts)


def _chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def saved(pixels, kind, mode=None, **options):
    """A file of `kind` with the array `pixels`, as Pillow writes it."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels, mode)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def data_uri(content, media_type="image/png"):
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def image_part(content=None, media_type="image/png"):
    """A part of a message, by default with a small red image."""
    content = png(np.full((2, 3, 3), (255, 0, 0)), colour_type=RGB) if content is None else content
    return {"type": "image_url", "image_url": {"url": data_uri(content, media_type)}}
