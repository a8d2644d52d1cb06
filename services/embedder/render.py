"""The embedder's answer as JSON bytes, written directly: a thousand vectors are too many to go through a contract one by one.

Called by the routes, off the event loop. The bytes are those of an `EmbeddingResponse`, which a test checks.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic_core import to_json

from shared.batching.model_thread import Rows
from shared.contracts.embeddings import EmbeddingUsage, EncodingFormat


def render_embeddings(
    rows: Rows,
    encoding_format: EncodingFormat,
    model: str,
    usage: EmbeddingUsage,
    truncated: Sequence[int] = (),
) -> bytes:
    """JSON of the whole answer.

    Args:
        rows: [S, N] float32, in the order of the inputs.
        encoding_format: a list of floats, or base64 of little-endian float32.
        truncated: indexes of the inputs that lost an end.
    """
    items = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%s}' % (index, vector)
        for index, vector in enumerate(_vectors(rows, encoding_format))
    )
    rest = b'"model":%s,"usage":%s' % (to_json(model), usage.model_dump_json().encode())
    cut = b',"truncated":%s' % to_json(list(truncated)) if truncated else b""
    return b'{"object":"list","data":[' + items + b"]," + rest + cut + b"}"


def vector_list(rows: Rows, encoding_format: EncodingFormat) -> bytes:
    """JSON of a list of vectors, each a list of floats or base64 of little-endian float32."""
    return b"[" + b",".join(_vectors(rows, encoding_format)) + b"]"


def _vectors(rows: Rows, encoding_format: EncodingFormat) -> list[bytes]:
    if encoding_format == "base64":
        return [b'"%s"' % b64encode(row) for row in np.ascontiguousarray(rows, dtype="<f4")]
    return [to_json(row) for row in round_to_float32_digits(rows).tolist()]


def round_to_float32_digits(rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`rows` rounded to the nine significant digits that tell any two float32 apart, so that JSON has no more than those.

    A third of the answer's bytes less, and every value read back as float32 is the same.
    """
    wide = rows.astype(np.float64)
    exponents = np.floor(np.log10(np.maximum(np.abs(wide), 1e-46)))
    scales = 10.0 ** (8 - exponents)
    rounded: np.ndarray[Any, np.dtype[np.float64]] = np.rint(wide * scales) / scales
    return rounded
