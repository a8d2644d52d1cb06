"""Image files as phones make them, and requests with them, for the benchmarks of images."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 2000, 1500
QUESTION = "What is in this picture?"


def photo(number: int, kind: str) -> bytes:
    """A file of `kind`, PNG or JPEG, with a picture of its own: smooth light, large shapes and a sensor's noise."""
    rng = np.random.default_rng(number)
    rows, columns = np.linspace(0, 1, HEIGHT)[:, None, None], np.linspace(0, 1, WIDTH)[None, :, None]
    slopes, shapes = rng.uniform(-90, 90, (2, 3)), rng.uniform(2, 20, (2, 3))
    light = 128 + slopes[0] * rows + slopes[1] * columns
    light = light + 25 * np.sin(shapes[0] * rows * np.pi) * np.cos(shapes[1] * columns * np.pi)
    pixels = np.clip(light + rng.normal(0, 4, (HEIGHT, WIDTH, 3)), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **({"compress_level": 3} if kind == "PNG" else {"quality": 90}))
    return out.getvalue()


def chat_body(text: str, files: Sequence[tuple[bytes, str]], max_tokens: int) -> dict[str, Any]:
    """A request that says `text`, then shows `files`, each with its kind, then asks."""
    parts = [
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"},
        }
        for content, kind in files
    ]
    content = [{"type": "text", "text": text}, *parts, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
