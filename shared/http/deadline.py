"""The client's deadline, header `X-Request-Deadline`: the unix time in milliseconds after which it no longer wants an answer.

Read by the gateway, which ends a request that is too late, and with it the service's work, and passes the header on.
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
    value = headers.get(DEADLINE_HEADER)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 16):
        raise InvalidRequestError(
            "X-Request-Deadline must be a unix time in whole milliseconds", param="X-Request-Deadline"
        )
    left_s = int(value) / 1000 - time.time()
    if left_s <= 0:
        raise DeadlineExceededError("The deadline of the request is past")
    return left_s
