"""Speaks to one replica: which headers go out, which come back, what an answer must look like to be passed on.

Called by `forward`. Makes exactly one attempt; choosing and trying again is not decided here.
"""

import json
from typing import Any

from services.gateway.auth import UpstreamAuth
from services.gateway.inbound import Inbound
from services.gateway.paths import ADMIN_PATHS
from services.gateway.upstreams import Replica
from shared.errors import ErrorCode, ServiceError, UpstreamInvalidError, UpstreamUnavailableError
from shared.http.client import Header, HttpClient, IncomingResponse, OutgoingRequest
from shared.observability.context import request_id_var

_MAX_ERROR_BYTES = 2**20
_FORWARDED = frozenset(
    {b"content-type", b"accept", b"user-agent", b"x-request-deadline", b"traceparent", b"tracestate", b"baggage"}
)
_OWN_PREFIX = b"x-trivium-"
# Hop-by-hop (RFC 9110, 7.6.1), and what this server writes itself.
_DROPPED = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding",
        b"upgrade", b"date", b"server", b"x-request-id",
    }
)  # fmt: skip


class Answer:
    """A replica's answer with a body that is still coming, or with all of it if it is an error."""

    def __init__(self, response: IncomingResponse, body: bytes | None = None) -> None:
        self.status = response.status
        self.headers = _returned(response.headers)
        self.is_event_stream = body is None and response.header(b"content-type").startswith("text/event-stream")
        self.is_not_ready = body is not None and (_error(body) or {}).get("code") == ErrorCode.NOT_READY
        self._response = response
        self._body = body

    @property
    def at_end(self) -> bool:
        """Whether all of the body was read."""
        return not self._body and self._response.at_end

    async def read(self) -> bytes:
        """More of the body, as it came; empty at its end."""
        if self._body is None:
            return await self._response.read()
        body, self._body = self._body, b""
        return body

    def close(self) -> None:
        """Let go of the connection; one with an unfinished answer is closed, so that the service stops its work."""
        self._response.close()


class ServiceClient:
    """Sends a client's request on."""

    def __init__(self, http: HttpClient, auth: UpstreamAuth) -> None:
        self._http = http
        self._auth = auth

    async def send(self, inbound: Inbound, replica: Replica, connect_s: float) -> Answer:
        """One attempt at `replica`.

        Raises:
            UpstreamUnavailableError: it could not be reached and has not started the request.
            UpstreamInvalidError: it broke off, or answered neither a success nor an error in the shape of all services.
            DeadlineExceededError: it did not answer in time.
        """
        request = OutgoingRequest(
            inbound.method, inbound.target, self._headers(inbound), inbound.body, inbound.path not in ADMIN_PATHS
        )
        try:
            response = await self._http.send(replica.origin, request, connect_s)
        except ServiceError as error:
            raise _named(error, inbound) from error
        if 200 <= response.status < 300:
            return Answer(response)
        try:
            return Answer(response, await _read_error(response))
        except ServiceError as error:
            raise _named(error, inbound) from error
        finally:
            response.close()

    def _headers(self, inbound: Inbound) -> list[Header]:
        given: bytes | None = None
        headers: list[Header] = []
        for header in inbound.headers:
            name = header[0]
            if name in _FORWARDED or name.startswith(_OWN_PREFIX):
                headers.append(header)
            elif name == b"authorization":
                given = header[1]
        authorization = self._auth.authorization(inbound.path, given)
        if authorization is not None:
            headers.append((b"authorization", authorization))
        request_id = request_id_var.get()
        if request_id is not None:
            headers.append((b"x-request-id", request_id.encode()))
        return headers


async def _read_error(response: IncomingResponse) -> bytes:
    body = await response.read_all(_MAX_ERROR_BYTES)
    if response.status < 400 or _error(body) is None:
        raise UpstreamInvalidError(f"answered {response.status} in a form that is not ours")
    return body


def _error(body: bytes) -> dict[str, Any] | None:
    try:
        content: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = content.get("error") if isinstance(content, dict) else None
    return error if isinstance(error, dict) and isinstance(error.get("message"), str) else None


def _named(error: ServiceError, inbound: Inbound) -> ServiceError:
    if isinstance(error, UpstreamUnavailableError):
        return UpstreamUnavailableError(f"The {inbound.service} service cannot be reached", retry_after_s=1)
    return type(error)(f"The {inbound.service} service {error.message}")


def _returned(headers: list[Header]) -> list[Header]:
    dropped = set(_DROPPED)
    for name, value in headers:
        if name == b"connection":
            dropped.update(part.strip().lower() for part in value.split(b","))
    return [header for header in headers if header[0] not in dropped]
