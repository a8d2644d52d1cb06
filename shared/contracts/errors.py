"""The one error shape: OpenAI's `error` object plus a top-level `message`, which Cohere's and TEI's clients read.

Written by `shared.http` and by the SSE stream; read by the gateway. All four keys of `error` are always present.
"""

from shared.contracts.wire import WireModel


class ErrorDetail(WireModel):
    """What went wrong; `code` is a string of `shared.errors.ErrorCode`, `param` the dotted field name."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(WireModel):
    """Body of every answer that is not a success."""

    error: ErrorDetail
    message: str
