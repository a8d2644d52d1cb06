"""The deadline header: whole unix milliseconds, still to come."""

import time

import pytest
from starlette.datastructures import Headers

from shared.errors import DeadlineExceededError, InvalidRequestError
from shared.http.deadline import deadline_ms, seconds_left


def headers(value: str) -> Headers:
    return Headers({"X-Request-Deadline": value})


def test_time_left() -> None:
    assert seconds_left(Headers()) is None
    left_s = seconds_left(headers(str(int((time.time() + 60) * 1000))))
    assert left_s is not None
    assert 50 < left_s <= 60


def test_the_deadline_itself() -> None:
    soon = int((time.time() + 60) * 1000)
    assert deadline_ms(Headers()) is None
    assert deadline_ms(headers(str(soon))) == soon


@pytest.mark.parametrize("value", ["0", "1", pytest.param(str(int(time.time() * 1000) - 1), id="a millisecond ago")])
def test_past(value: str) -> None:
    with pytest.raises(DeadlineExceededError):
        seconds_left(headers(value))
    with pytest.raises(DeadlineExceededError):
        deadline_ms(headers(value))


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "1e12", "\u0663", "9" * 17])
def test_not_a_time(value: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        seconds_left(headers(value) if value.isascii() else Headers(raw=[(b"x-request-deadline", value.encode())]))
    assert raised.value.param == "X-Request-Deadline"
