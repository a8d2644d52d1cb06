"""Turns every exception into the one error shape; installed once by `shared.http.app`, so routes contain no `try`.

Foreign exceptions (FastAPI's, pydantic's) are translated here and nowhere else. Must not log prompts or echo input.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from shared.errors import InternalError, InvalidRequestError, MethodNotAllowedError, RouteNotFoundError, ServiceError
from shared.http.status import HTTP_ERRORS, error_headers, error_json

_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "dict", "none"})


def error_response(error: ServiceError) -> Response:
    """The HTTP answer for `error`."""
    status = HTTP_ERRORS[error.code].status
    return Response(error_json(error), status, error_headers(error), media_type="application/json")


def invalid_request_from(errors: Sequence[Any]) -> InvalidRequestError:
    """Name the field of the first of pydantic's errors, and say how many more there are."""
    first = errors[0]
    param = _param(first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    more = f" (and {len(errors) - 1} more)" if len({_param(item["loc"]) for item in errors}) > 1 else ""
    return InvalidRequestError(f"{param}: {message}{more}" if param else message, param=param)


def install_handlers(app: FastAPI) -> None:
    """Register the translations on `app`."""

    async def on_service_error(_request: Request, error: Exception) -> Response:
        return error_response(error if isinstance(error, ServiceError) else InternalError("Internal error"))

    async def on_validation_error(_request: Request, error: Exception) -> Response:
        errors = error.errors() if isinstance(error, RequestValidationError) else []
        stripped = [{**item, "loc": tuple(item["loc"])[1:]} for item in errors]
        return error_response(invalid_request_from(stripped))

    async def on_http_exception(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return error_response(_from_status(status, request))

    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)


def _from_status(status: int, request: Request) -> ServiceError:
    if status == 404:
        return RouteNotFoundError(f"No such path: {request.url.path}")
    if status == 405:
        return MethodNotAllowedError(f"Method {request.method} is not allowed for {request.url.path}")
    return InvalidRequestError("The request could not be read") if status < 500 else InternalError("Internal error")


def _param(location: Sequence[str | int]) -> str | None:
    """Dotted field name: pydantic's location without the names of the union members it tried."""
    parts: list[str] = []
    for part in location:
        if isinstance(part, str) and (part in _TYPE_NAMES or not part.replace("_", "a").isalnum()):
            break
        parts.append(str(part))
    return ".".join(parts) or None
