"""The outermost middleware: request id in and out, one log line and two metrics per request, errors of last resort.

Everything that escapes the application below ends here as an answer in the one error shape.
"""

import re
import time
import uuid
from collections.abc import Set as AbstractSet

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import InternalError, ServiceError
from shared.http.handlers import error_response
from shared.http.lifecycle import OPEN_PATHS
from shared.observability.context import request_id_var
from shared.observability.logging import get_logger
from shared.observability.metrics import Metrics

log = get_logger(__name__)
CLIENT_CLOSED = 499
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class AnswerBrokenError(Exception):
    """Raised by a route that has sent a part of its answer and cannot send the rest; breaks the connection."""


class RequestContextMiddleware:
    """Knows the declared paths, so that the label `path` of its metrics stays bounded."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: AbstractSet[str]) -> None:
        self._app = app
        self._paths = paths
        self._requests = metrics.counter("http_requests_total", "Answered HTTP requests.", ("path", "code"))
        self._duration = metrics.histogram(
            "http_request_duration_seconds", "Time from the request's head to the end of its answer.", ("path",)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        token = request_id_var.set(request_id)
        exchange = _Exchange(send, request_id)
        try:
            await exchange.run(self._app, scope, receive)
        finally:
            self._record(scope, exchange)
            request_id_var.reset(token)

    def _record(self, scope: Scope, exchange: "_Exchange") -> None:
        seconds = time.perf_counter() - exchange.started_at
        path = scope["path"] if scope["path"] in self._paths else "other"
        self._requests.labels(path, str(exchange.status)).inc()
        self._duration.labels(path).observe(seconds)
        if path not in OPEN_PATHS:
            log.info(
                "http_request",
                method=scope["method"],
                path=scope["path"],
                code=exchange.status,
                seconds=round(seconds, 4),
            )


class _Exchange:
    """One request and its answer, watched on the way out."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self._has_started = False
        self.status = CLIENT_CLOSED
        self.started_at = time.perf_counter()

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        try:
            await app(scope, receive, self._watch)
        except ClientDisconnect:
            return
        except AnswerBrokenError as error:
            self._break_off(str(error))
        except ServiceError as error:
            await self._answer(error, scope, receive)
        except Exception:
            log.exception("request_failed")
            await self._answer(InternalError("Internal error"), scope, receive)

    async def _answer(self, error: ServiceError, scope: Scope, receive: Receive) -> None:
        if self._has_started:
            self._break_off(error.message)
            return
        response = error_response(error)
        response.headers["connection"] = "close"  # the body may be unread
        await response(scope, receive, self._watch)

    def _break_off(self, reason: str) -> None:
        # uvicorn closes the connection of an application that returns before its answer is complete: the client notices.
        log.warning("answer_broken_off", reason=reason)

    async def _watch(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_started = True
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self._request_id
        await self._send(message)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
