"""Copies an answer to the client byte for byte as it comes, and says so when it breaks off.

Called by `forward`. An event stream that breaks ends with an error event and `[DONE]`; for any other body the error is raised,
and the layers above break the connection, so that half an answer is never taken for a whole one.
"""

import asyncio

from starlette.types import Scope, Send

from services.gateway.clients import Answer
from shared.errors import ServiceError
from shared.http.lifecycle import SCOPE_KEY, Lifecycle, shutdown_error
from shared.http.request_context import AnswerBrokenError
from shared.http.sse import error_events

_EVENT_END = b"\n\n"
_STREAM_END = b"data: [DONE]\n\n"


class Relay:
    """One answer on its way to one client."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._lifecycle: Lifecycle | None = scope.get(SCOPE_KEY)
        self._send = send
        self._tail = _EVENT_END
        self._has_started = False
        self._is_event_stream = False

    async def copy(self, answer: Answer) -> None:
        """Send all of `answer`.

        Raises:
            ServiceError: it broke off.
        """
        await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        self._has_started = True
        self._is_event_stream = answer.is_event_stream
        while True:
            data = await answer.read()
            is_last = answer.at_end
            if self._is_event_stream:
                self._tail = (self._tail + data)[-len(_STREAM_END) :]
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
            if is_last:
                return

    async def finish(self, error: ServiceError) -> None:
        """End with `error`.

        Raises:
            ServiceError: that one, if the client has been sent nothing.
            AnswerBrokenError: it has been sent half a body that is not an event stream.
        """
        if not self._has_started:
            raise error
        if not self._is_event_stream:
            raise AnswerBrokenError(error.message) from error
        if self._tail.endswith(_STREAM_END):
            events = b""
        elif self._tail.endswith(_EVENT_END):
            events = error_events(error)
        else:
            events = _EVENT_END + error_events(error)  # the error must not become a part of half an event
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    async def finish_cancelled(self, cancelled: asyncio.CancelledError) -> None:
        """End a stream that the end of the grace period cut off.

        Raises:
            CancelledError: it was something else, or nothing was sent yet, which the middleware answers.
            AnswerBrokenError: as for `finish`.
        """
        if self._lifecycle is None or not self._lifecycle.has_expired or not self._has_started:
            raise cancelled
        await self.finish(shutdown_error())
