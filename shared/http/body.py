"""Reads a JSON body into a contract; the routes of all services use it instead of FastAPI's own body parsing.

Parsing from bytes lets pydantic refuse what Python's json module lets through: lone surrogates, NaN and bottomless nesting.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json

from shared.contracts.wire import WireModel
from shared.errors import InvalidRequestError
from shared.http.handlers import invalid_request_from

Model = TypeVar("Model", bound=WireModel)


def json_body(model: type[Model], *, ignores_unknown: bool = False) -> Callable[[Request], Awaitable[Model]]:
    """A FastAPI dependency that answers the body as `model`.

    Args:
        ignores_unknown: drop fields that no contract declares, at any depth, instead of refusing them.
    Raises:
        InvalidRequestError: compressed, not JSON by its content type, not JSON by its bytes, or not of the model's shape.
    """

    async def read(request: Request) -> Model:
        _check_content_type(request)
        _check_content_encoding(request)
        try:
            return model.model_validate_json(await request.body(), extra="ignore" if ignores_unknown else None)
        except ValidationError as error:
            raise invalid_request_from(error.errors(include_input=False, include_url=False)) from None

    return read


async def has_field(request: Request, name: str) -> bool:
    """Whether the body is a JSON object with the field `name`, for routes that several kinds of client share."""
    body = await request.body()
    if json.dumps(name).encode() not in body:
        return False
    try:
        content = from_json(body)
    except ValueError:
        return False  # the contract says what is wrong with it
    return isinstance(content, dict) and name in content


def body_schema(model: type[WireModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is read by `json_body(model)`."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _check_content_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        said = f"not {content_type!r}" if content_type else "and is missing"
        raise InvalidRequestError(f"Content-Type must be application/json, {said}", param="Content-Type")


def _check_content_encoding(request: Request) -> None:
    """A compressed body would otherwise be called invalid JSON, and one that only says so would be believed in spite of it."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise InvalidRequestError(f"Content-Encoding: {encoding[:32]!r} is not supported", param="Content-Encoding")
