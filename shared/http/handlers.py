"""Turns every exception into the one error shape; installed once by `shared.http.app`, so routes contain no `try`.

Foreign exceptions (FastAPI's, pydantic's) are translated here and nowhere else. Must not log prompts or echo input.
"""

import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from shared.errors import InternalError, InvalidRequestError, MethodNotAllowedError, RouteNotFoundError, ServiceError
from shared.http.status import HTTP_ERRORS, error_headers, error_json

_MAX_PARAM = 200
_NAMED = re.compile(r"([a-z_]+): (.+)", re.DOTALL)
_SHOULD_BE = "Input should be "
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "dict", "none"})


def error_response(error: ServiceError) -> Response:
    """The HTTP answer for `error`."""
    status = HTTP_ERRORS[error.code].status
    return Response(error_json(error), status, error_headers(error), media_type="application/json")


def invalid_request_from(errors: Sequence[Any]) -> InvalidRequestError:
    """Name the field of the most telling of pydantic's errors, and say whether there are others.

    Where a field may be one of several types, pydantic reports what each of them found: a value that is wrong tells more than a
    type that does not fit at all.
    """
    field = _param(errors[0])
    same = [item for item in errors if (_param(item) or "").partition(".")[0] == (field or "").partition(".")[0]]
    first = min(same, key=lambda item: (str(item["type"]).endswith("_type"), -len(item["loc"])))
    param = _param(first)
    message = _alternatives(first, same)
    if first["type"] == "value_error" and (named := _NAMED.match(message)):
        # A check over several fields of an object says which one it blames.
        param, message = named[1] if param is None else f"{param}.{named[1]}", named[2]
    more = " (and others too)" if len({(_param(item) or "").partition(".")[0] for item in errors}) > 1 else ""
    return InvalidRequestError(f"{param}: {message}{more}" if param else message, param=param)


def _alternatives(first: Any, errors: Sequence[Any]) -> str:
    """What `first` says, with what the other types of the same field wanted where none fitted."""
    said = str(first["msg"]).removeprefix("Value error, ")
    if not (str(first["type"]).endswith("_type") and said.startswith(_SHOULD_BE)):
        return said
    alike = [item for item in errors if (_param(item), len(item["loc"])) == (_param(first), len(first["loc"]))]
    wanted = dict.fromkeys(str(item["msg"]).removeprefix(_SHOULD_BE) for item in alike)
    return _SHOULD_BE + " or ".join(wanted)


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


def _param(error: Any) -> str | None:
    """Dotted field name: pydantic's location without the names of the union members it tried."""
    parts: list[str] = []
    *path, last = error["loc"] or (None,)
    path = [part for part in path if not _is_contract(part)]
    if error["type"] == "extra_forbidden":  # the last part is what the client wrote, whatever it looks like
        named = [str(part) for part in path if not _is_type(part)]
        return ".".join([*named, str(last)])[:_MAX_PARAM] or None
    if last is not None and not (_is_contract(last) and str(error["type"]).startswith("model")):
        path.append(last)
    for part in path:
        if _is_type(part):
            break
        parts.append(str(part))
    return ".".join(parts)[:_MAX_PARAM] or None


def _is_contract(part: Any) -> bool:
    """Whether a part of a location is the name of a contract's class, which no field looks like."""
    return isinstance(part, str) and part[:1].isupper()


def _is_type(part: Any) -> bool:
    """Whether it is the name of a type, such as `str` or `list[int]`."""
    return isinstance(part, str) and (part in _TYPE_NAMES or not part.replace("_", "a").isalnum())
