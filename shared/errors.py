"""Everything a caller may be told went wrong, as one tree; raised by all services, mapped to HTTP in `shared.http`.

    ServiceError
    ├── InvalidRequestError            the request can never succeed as sent
    │   ├── ContextLengthExceededError
    │   └── ImageInvalidError
    ├── UnauthenticatedError · ForbiddenError
    ├── RouteNotFoundError · MethodNotAllowedError
    ├── ModelNotFoundError · AdapterNotFoundError · AdapterConflictError
    ├── PayloadTooLargeError · OverloadedError
    ├── NotReadyError · EngineDeadError · UpstreamUnavailableError · UpstreamInvalidError
    ├── DeadlineExceededError
    └── InternalError                  our bug

This module knows no HTTP status and imports nothing of the project.
"""

from enum import StrEnum
from typing import ClassVar


class ErrorCode(StrEnum):
    """The string that clients find under `error.code`."""

    INVALID_REQUEST = "invalid_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    IMAGE_INVALID = "image_invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    ADAPTER_NOT_FOUND = "adapter_not_found"
    ADAPTER_CONFLICT = "adapter_conflict"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    OVERLOADED = "overloaded"
    NOT_READY = "not_ready"
    ENGINE_DEAD = "engine_dead"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    UPSTREAM_INVALID = "upstream_invalid"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"


class ServiceError(Exception):
    """Base of all errors that reach a client.

    Args:
        message: one sentence for the client; must not carry stack traces, paths or object addresses.
        param: dotted name of the request field at fault, if one is.
        retry_after_s: seconds after which trying again is worth it, if known.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    is_retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequestError(ServiceError):
    """A field is missing, of the wrong type, out of range or not supported."""

    code = ErrorCode.INVALID_REQUEST


class ContextLengthExceededError(InvalidRequestError):
    """Prompt, or prompt plus requested output, is longer than the model's context."""

    code = ErrorCode.CONTEXT_LENGTH_EXCEEDED


class ImageInvalidError(InvalidRequestError):
    """An image part cannot be read or is outside the limits."""

    code = ErrorCode.IMAGE_INVALID


class UnauthenticatedError(ServiceError):
    """No key, or not a key this service knows."""

    code = ErrorCode.UNAUTHENTICATED


class ForbiddenError(ServiceError):
    """The key is known but may not do this."""

    code = ErrorCode.FORBIDDEN


class RouteNotFoundError(ServiceError):
    """No such path."""

    code = ErrorCode.ROUTE_NOT_FOUND


class MethodNotAllowedError(ServiceError):
    """The path exists, the HTTP method does not."""

    code = ErrorCode.METHOD_NOT_ALLOWED


class ModelNotFoundError(ServiceError):
    """No model of that name is served here."""

    code = ErrorCode.MODEL_NOT_FOUND


class AdapterNotFoundError(ServiceError):
    """No adapter of that name is known."""

    code = ErrorCode.ADAPTER_NOT_FOUND


class AdapterConflictError(ServiceError):
    """The adapter is in use, so it cannot be changed as asked."""

    code = ErrorCode.ADAPTER_CONFLICT


class PayloadTooLargeError(ServiceError):
    """The body is over the service's limit in bytes."""

    code = ErrorCode.PAYLOAD_TOO_LARGE


class OverloadedError(ServiceError):
    """The queue is full; nothing was started."""

    code = ErrorCode.OVERLOADED
    is_retryable = True


class NotReadyError(ServiceError):
    """The service is starting or shutting down; nothing was started."""

    code = ErrorCode.NOT_READY
    is_retryable = True


class EngineDeadError(ServiceError):
    """The engine process died while, or before, it worked on the request."""

    code = ErrorCode.ENGINE_DEAD
    is_retryable = True


class UpstreamUnavailableError(ServiceError):
    """No replica of the service behind the gateway could be reached."""

    code = ErrorCode.UPSTREAM_UNAVAILABLE
    is_retryable = True


class UpstreamInvalidError(ServiceError):
    """A service behind the gateway broke off or answered something that is not HTTP as agreed."""

    code = ErrorCode.UPSTREAM_INVALID


class DeadlineExceededError(ServiceError):
    """The request's time was over before its answer was."""

    code = ErrorCode.DEADLINE_EXCEEDED


class InternalError(ServiceError):
    """An impossible state was reached; this is a bug."""

    code = ErrorCode.INTERNAL
