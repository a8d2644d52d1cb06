"""The one table from error codes to HTTP: status, OpenAI's error type, and the way back for the gateway.

Used forward by `handlers` and `sse`, backward by clients. A code without a row fails the round-trip test.
"""

import json
from typing import NamedTuple

from shared.contracts.errors import ErrorBody, ErrorDetail
from shared.errors import ErrorCode, ServiceError


class HttpError(NamedTuple):
    """How one error code looks in HTTP."""

    status: int
    type: str


HTTP_ERRORS: dict[ErrorCode, HttpError] = {
    ErrorCode.INVALID_REQUEST: HttpError(400, "invalid_request_error"),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: HttpError(400, "invalid_request_error"),
    ErrorCode.IMAGE_INVALID: HttpError(400, "invalid_request_error"),
    ErrorCode.UNAUTHENTICATED: HttpError(401, "authentication_error"),
    ErrorCode.FORBIDDEN: HttpError(403, "permission_error"),
    ErrorCode.ROUTE_NOT_FOUND: HttpError(404, "invalid_request_error"),
    ErrorCode.METHOD_NOT_ALLOWED: HttpError(405, "invalid_request_error"),
    ErrorCode.MODEL_NOT_FOUND: HttpError(404, "invalid_request_error"),
    ErrorCode.ADAPTER_NOT_FOUND: HttpError(404, "invalid_request_error"),
    ErrorCode.ADAPTER_CONFLICT: HttpError(409, "invalid_request_error"),
    ErrorCode.PAYLOAD_TOO_LARGE: HttpError(413, "invalid_request_error"),
    ErrorCode.OVERLOADED: HttpError(429, "rate_limit_error"),
    ErrorCode.NOT_READY: HttpError(503, "server_error"),
    ErrorCode.ENGINE_DEAD: HttpError(503, "server_error"),
    ErrorCode.UPSTREAM_UNAVAILABLE: HttpError(503, "server_error"),
    ErrorCode.UPSTREAM_INVALID: HttpError(502, "server_error"),
    ErrorCode.DEADLINE_EXCEEDED: HttpError(504, "server_error"),
    ErrorCode.INTERNAL: HttpError(500, "server_error"),
}


def error_body(error: ServiceError) -> ErrorBody:
    """The JSON body that tells a client about `error`."""
    detail = ErrorDetail(
        message=error.message, type=HTTP_ERRORS[error.code].type, param=error.param, code=error.code.value
    )
    return ErrorBody(error=detail, message=error.message)


def error_json(error: ServiceError) -> bytes:
    """`error_body` as bytes, pure ASCII, so that any message can be sent, a lone surrogate included."""
    return json.dumps(error_body(error).model_dump()).encode("ascii")


def error_headers(error: ServiceError) -> dict[str, str]:
    """`Retry-After` where waiting helps, `x-should-retry: false` where it is in vain, and what the code itself asks for."""
    headers: dict[str, str] = {}
    if error.is_retryable:
        headers["retry-after"] = str(max(1, round(error.retry_after_s or 1)))
    elif HTTP_ERRORS[error.code].status >= 409:
        headers["x-should-retry"] = "false"
    if error.code is ErrorCode.PAYLOAD_TOO_LARGE:
        headers["connection"] = "close"  # the rest of the body is not wanted
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    return headers
