"""What a request must pass before a route sees it: the API key and the limit on the body's size.

Installed by `shared.http.app` for every path but the open ones, so that a new route is protected by default.
"""

import hmac
from collections.abc import Callable

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import ForbiddenError, PayloadTooLargeError, UnauthenticatedError
from shared.http.lifecycle import OPEN_PATHS


def has_bearer(headers: Headers, key: SecretStr) -> bool:
    """Whether the request carries `key` as its bearer token; takes the same time for any wrong key."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip().encode("utf-8", "replace")
    return scheme.lower() == "bearer" and hmac.compare_digest(given, key.get_secret_value().encode())


class ApiKeyMiddleware:
    """Asks for one of the bearer tokens that `keys` names for the path; None asks for nothing, no token lets nobody in."""

    def __init__(self, app: ASGIApp, keys: Callable[[str], tuple[SecretStr, ...] | None]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            keys = self._keys(scope["path"])
            if keys is not None:
                self._check(Headers(scope=scope), keys)
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, keys: tuple[SecretStr, ...]) -> None:
        if not keys:
            raise ForbiddenError("This path is closed: the service was started without a key for it")
        if not any(has_bearer(headers, key) for key in keys):
            raise UnauthenticatedError("A valid API key is needed: send it as 'Authorization: Bearer KEY'")


class BodyLimitMiddleware:
    """Refuses a body over the path's limit, by its declared length or while it comes in."""

    def __init__(self, app: ASGIApp, limit_bytes: Callable[[str], int]) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_bytes(scope["path"])
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > limit:
                raise _too_large(limit)
            return message

        await self._app(scope, counted, send)


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The body is larger than the limit of {limit} bytes")
