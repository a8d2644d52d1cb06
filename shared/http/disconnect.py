"""Stops work whose client has hung up, for answers that are not streams.

Routes wrap the awaitable that does the work; cancelling it is how the work learns of the disconnect.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

Result = TypeVar("Result")


async def until_disconnect(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`; cancel it when the client of `request` is gone.

    The body must have been read before: the first message after it is the disconnect.

    Raises:
        ClientDisconnect: the client left first; nobody is there to be answered.
    """
    worker = asyncio.create_task(work, name="request-work")
    listener = asyncio.create_task(_disconnected(request), name="request-listen")
    try:
        await asyncio.wait({worker, listener}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientDisconnect
    finally:
        for task in (worker, listener):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener
        await asyncio.wait({worker})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
