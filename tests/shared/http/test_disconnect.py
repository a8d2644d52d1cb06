"""Work stops when its client leaves, and only then."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from shared.errors import DeadlineExceededError
from shared.http.disconnect import cancelled_on_disconnect, until_disconnect
from tests.shared.http.asgi import Wire, http_scope


def test_block_is_cancelled_when_the_client_leaves() -> None:
    async def run() -> None:
        wire = Wire()
        await wire.receive()
        wire.hang_up.set()
        with pytest.raises(ClientDisconnect):
            async with cancelled_on_disconnect(wire.receive):
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(run())


def test_block_that_ends_first_is_left_alone() -> None:
    async def run() -> None:
        wire = Wire()
        await wire.receive()
        async with cancelled_on_disconnect(wire.receive):
            await asyncio.sleep(0)
        wire.hang_up.set()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_cancelling_from_outside_stays_a_cancellation() -> None:
    async def run() -> None:
        wire = Wire()
        await wire.receive()

        async def work() -> None:
            async with cancelled_on_disconnect(wire.receive):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_until_disconnect() -> None:
    async def run() -> None:
        wire = Wire()
        request = Request(http_scope("/x"), wire.receive)
        await request.body()

        async def answer() -> int:
            return 42

        was_cancelled = False

        async def work() -> None:
            nonlocal was_cancelled
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                was_cancelled = True
                raise

        assert await until_disconnect(request, answer(), timeout_s=60) == 42
        with pytest.raises(DeadlineExceededError):
            await until_disconnect(request, work(), timeout_s=0.001)
        assert was_cancelled
        was_cancelled = False
        wire.hang_up.set()
        with pytest.raises(ClientDisconnect):
            await until_disconnect(request, work())
        assert was_cancelled

    asyncio.run(run())
