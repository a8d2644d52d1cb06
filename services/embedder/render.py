"""The embedder's answer as JSON bytes, written directly: a thousand vectors are too many to go through a contract one by one.

Called by `api`, off the event loop. The bytes are those of an `EmbeddingResponse`, which a test checks.
"""

from base64 import b64encode

import numpy as np
from pydantic_core import to_json

from shared.batching.model_thread import Rows
from shared.contracts.embeddings import EmbeddingUsage, EncodingFormat


def render_embeddings(rows: Rows, encoding_format: EncodingFormat, model: str, usage: EmbeddingUsage) -> bytes:
    """JSON of the whole answer.

    Args:
        rows: [S, N] float32, in the order of the inputs.
        encoding_format: a list of floats, or base64 of little-endian float32.
    """
    items = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%s}' % (index, vector)
        for index, vector in enumerate(_vectors(rows, encoding_format))
    )
    head, tail = (
        b'{"object":"list","data":[',
        b'],"model":%s,"usage":%s}' % (to_json(model), usage.model_dump_json().encode()),
    )
    return head + items + tail


def _vectors(rows: Rows, encoding_format: EncodingFormat) -> list[bytes]:
    little_endian = np.ascontiguousarray(rows, dtype="<f4")
    if encoding_format == "base64":
        return [b'"%s"' % b64encode(row) for row in little_endian]
    return [to_json(row) for row in little_endian.tolist()]
