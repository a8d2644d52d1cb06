"""Runs a coroutine beside an application for as long as the application lives, and sees to it that its death is noticed.

Called by services in their lifespan. Knows nothing of what the coroutine does.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from shared.http.lifecycle import Lifecycle
from shared.observability.logging import get_logger

log = get_logger(__name__)


@asynccontextmanager
async def running(name: str, work: Coroutine[Any, Any, None], lifecycle: Lifecycle) -> AsyncIterator[None]:
    """Run `work` beside the block; if it raises, the process ends, since nobody would do it any more."""

    def observe(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("task_died", task=name, exc_info=error)
            lifecycle.fail(f"the {name} task died")

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(observe)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
