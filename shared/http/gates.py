"""What a request must pass before a route sees it: the API key and the limit on the body's size.

Installed by `shared.http.app` for every path but the open ones, so that a new route is protected by default.
"""

import hmac

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import PayloadTooLargeError, UnauthenticatedError
from shared.http.lifecycle import OPEN_PATHS


def has_bearer(headers: Headers, key: SecretStr) -> bool:
    """Whether the request carries `key` as its bearer token; takes the same time for any wrong key."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip().encode("utf-8", "replace")
    return scheme.lower() == "bearer" and hmac.compare_digest(given, key.get_secret_value().encode())


class ApiKeyMiddleware:
    """Asks for the bearer token."""

    def __init__(self, app: ASGIApp, api_key: SecretStr) -> None:
        self._app = app
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in OPEN_PATHS
        if not is_open and not has_bearer(Headers(scope=scope), self._api_key):
            raise UnauthenticatedError("A valid API key is needed: send it as 'Authorization: Bearer KEY'")
        await self._app(scope, receive, send)


class BodyLimitMiddleware:
    """Refuses a body over `max_body_bytes`, by its declared length or while it comes in."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > self._limit:
            raise self._error()
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._limit:
                raise self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(f"The body is larger than the limit of {self._limit} bytes")
