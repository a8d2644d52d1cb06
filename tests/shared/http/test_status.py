"""Every error has its row in the table, and an answer made of it says all there is to say."""

import json

import pytest

from shared.errors import ErrorCode, ServiceError
from shared.http.handlers import error_response
from shared.http.status import HTTP_ERRORS

ALL_STATUSES = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "image_invalid": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "route_not_found": 404,
    "method_not_allowed": 405,
    "model_not_found": 404,
    "adapter_not_found": 404,
    "adapter_conflict": 409,
    "payload_too_large": 413,
    "overloaded": 429,
    "internal": 500,
    "upstream_invalid": 502,
    "not_ready": 503,
    "engine_dead": 503,
    "upstream_unavailable": 503,
    "deadline_exceeded": 504,
}


def subclasses(cls: type[ServiceError]) -> list[type[ServiceError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in subclasses(child))]


def test_every_code_has_one_class_and_one_row() -> None:
    own = [cls.code for cls in subclasses(ServiceError) if "code" in vars(cls) and cls is not ServiceError]
    assert sorted(own) == sorted(ErrorCode)
    assert set(HTTP_ERRORS) == set(ErrorCode)
    assert {code.value: row.status for code, row in HTTP_ERRORS.items()} == ALL_STATUSES


@pytest.mark.parametrize("cls", subclasses(ServiceError), ids=lambda cls: cls.__name__)
def test_answer_of_every_error(cls: type[ServiceError]) -> None:
    error = cls("what happened: ü \ud800", param="a.b", retry_after_s=7.2)
    response = error_response(error)
    body = json.loads(bytes(response.body))
    assert response.status_code == HTTP_ERRORS[cls.code].status
    assert body["error"] == {
        "message": error.message,
        "type": HTTP_ERRORS[cls.code].type,
        "param": "a.b",
        "code": cls.code.value,
    }
    assert body["message"] == error.message
    assert set(body) == {"error", "message"}
    assert response.headers.get("retry-after") == ("7" if cls.is_retryable else None)


def test_a_client_is_told_not_to_retry_in_vain() -> None:
    by_code = {cls.code: cls for cls in subclasses(ServiceError)}
    for code in (ErrorCode.INTERNAL, ErrorCode.ADAPTER_CONFLICT, ErrorCode.DEADLINE_EXCEEDED):
        assert error_response(by_code[code]("no")).headers["x-should-retry"] == "false"
    assert error_response(by_code[ErrorCode.UNAUTHENTICATED]("no")).headers["www-authenticate"] == "Bearer"
