"""The client's deadline, header `X-Request-Deadline`: the unix time in milliseconds after which it no longer wants an answer.

Read by the gateway, which ends a request that is too late, and with it the service's work, and passes the header on; by the
generator, which does not start what is too late; and by the embedder and the reranker, which drop it.
"""

import time

from starlette.datastructures import Headers

from shared.errors import DeadlineExceededError, InvalidRequestError

DEADLINE_HEADER = "x-request-deadline"


def seconds_left(headers: Headers) -> float | None:
    """Seconds until the deadline of the request, more than 0; None where it has none.

    Raises:
        InvalidRequestError: the header is not a whole number.
        DeadlineExceededError: the deadline is past.
    """
    deadline = _parse(headers)
    return None if deadline is None else _seconds_until(deadline)


def deadline_ms(headers: Headers) -> int | None:
    """The deadline itself, which is still to come; the same errors."""
    deadline = _parse(headers)
    if deadline is not None:
        _seconds_until(deadline)
    return deadline


def _parse(headers: Headers) -> int | None:
    value = headers.get(DEADLINE_HEADER)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 16):
        raise InvalidRequestError(
            "X-Request-Deadline must be a unix time in whole milliseconds", param="X-Request-Deadline"
        )
    return int(value)


def _seconds_until(deadline: int) -> float:
    left_s = deadline / 1000 - time.time()
    if left_s <= 0:
        raise DeadlineExceededError("The deadline of the request is past")
    return left_s
