"""Stops work whose client has hung up; cancelling it is how the work learns of the disconnect.

Routes wrap the awaitable that does the work in `until_disconnect`; code that is its own ASGI application uses the block
`cancelled_on_disconnect`. `EventStream` does the same for streams by itself.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from shared.errors import DeadlineExceededError

Result = TypeVar("Result")


async def until_disconnect(
    request: Request, work: Coroutine[Any, Any, Result], *, timeout_s: float | None = None
) -> Result:
    """Await `work`; cancel it when the client of `request` is gone, or after `timeout_s`, where the client wants no answer more.

    The body must have been read before: the first message after it is the disconnect.

    Raises:
        ClientDisconnect: the client left first; nobody is there to be answered.
        DeadlineExceededError: the time was over first.
    """
    worker = asyncio.create_task(work, name="request-work")
    listener = asyncio.create_task(_disconnected(request.receive), name="request-listen")
    try:
        done, _ = await asyncio.wait({worker, listener}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        if not done:
            raise DeadlineExceededError("The deadline passed before the answer was there")
        raise ClientDisconnect
    finally:
        for task in (worker, listener):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener
        await asyncio.wait({worker})


@contextlib.asynccontextmanager
async def cancelled_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client is gone; the request's body must have been read before.

    Raises:
        ClientDisconnect: the client left while the block ran.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - async code always runs in a task
    num_cancels = task.cancelling()
    is_gone = False

    async def listen() -> None:
        nonlocal is_gone
        await _disconnected(receive)
        is_gone = True
        task.cancel()

    listener = asyncio.create_task(listen(), name="disconnect-listen")
    try:
        yield
    except asyncio.CancelledError:
        if is_gone and task.uncancel() <= num_cancels:
            raise ClientDisconnect from None
        raise
    finally:
        listener.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
