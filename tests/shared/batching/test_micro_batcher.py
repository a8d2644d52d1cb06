"""The MicroBatcher with a fake model: every client gets its own rows, once, whatever the others do.

No test depends on how fast the machine is: the fake model is held inside a forward where order matters.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from shared.batching.micro_batcher import BatcherSpec, BatchReport, MicroBatcher
from shared.batching.model_thread import ForwardSpec
from shared.errors import EngineDeadError, InternalError, NotReadyError, OverloadedError
from shared.settings.errors import StartError
from tests.shared.batching.fake_model import DEADLY, HOLLOW, POISON, FakeModel, row_of

PADDED, FLAT = ForwardSpec(64), ForwardSpec(64, has_padding=False, max_in_flight=2)
SPEC = BatcherSpec(max_rows=8, max_padding_share=0.3, max_queue_tokens=200, hold_s=0.0)


class Running:
    """A started batcher, its model and what it has told."""

    def __init__(self, model: FakeModel, spec: BatcherSpec) -> None:
        self.model = model
        self.reports: list[BatchReport] = []
        self.deaths: list[str] = []
        self.batcher = MicroBatcher(
            "test-model", lambda: model, spec, on_batch=self.reports.append, on_dead=self.deaths.append
        )

    def encode(self, sequences: list[list[int]]) -> "asyncio.Task[np.ndarray]":
        return asyncio.create_task(self.batcher.encode(sequences))

    async def encode_while_busy(self, requests: list[list[list[int]]]) -> "list[asyncio.Task[np.ndarray]]":
        """Start a request that fills the thread and the place ahead, then queue `requests` behind them."""
        forward = self.model.forward
        self.model.is_inside.clear()
        self.model.gate.clear()
        tasks = [self.encode([[number] * forward.max_tokens for number in range(1, forward.max_in_flight + 2)])]
        await until(lambda: self.model.is_inside.is_set())
        tasks += [self.encode(request) for request in requests]
        await asyncio.sleep(0)
        return tasks


@asynccontextmanager
async def running(spec: BatcherSpec = SPEC, forward: ForwardSpec = PADDED) -> AsyncIterator[Running]:
    run = Running(FakeModel(forward), spec)
    run.batcher.start()
    await until(lambda: run.batcher.state == "ready")
    try:
        yield run
    finally:
        run.model.gate.set()
        await run.batcher.stop()


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110 - what is waited for is set on the model thread
            await asyncio.sleep(0.001)


def run_async(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


@pytest.mark.parametrize("cancel_share", [0.0, 0.2])
@pytest.mark.parametrize("forward", [PADDED, FLAT])
@pytest.mark.parametrize("seed", range(3))
def test_every_sequence_gets_its_own_row_once(seed: int, forward: ForwardSpec, cancel_share: float) -> None:
    async def test() -> None:
        spec = BatcherSpec(max_rows=8, max_padding_share=0.3, max_queue_tokens=10**6, hold_s=0.001 * (seed % 2))
        async with running(spec, forward) as run:
            await asyncio.gather(*(client(run, random.Random(100 * seed + number)) for number in range(8)))
            batches, reports = run.model.batches, run.reports
            assert run.model.thread_names == {"test-model"}
            assert len(batches) == len(reports)
            for batch, report in zip(batches, reports, strict=True):
                num_tokens = sum(map(len, batch))
                cost = len(batch) * max(map(len, batch)) if forward.has_padding else num_tokens
                assert len(batch) <= 8
                assert cost <= 64
                # What is abandoned after a batch was formed leaves it, so only without that is it surely dense.
                assert cancel_share > 0 or num_tokens >= 0.7 * cost
                assert (report.num_rows, report.num_tokens) == (len(batch), num_tokens)
                assert report.num_padding_tokens == cost - num_tokens
            assert len(run.batcher._line) == 0
            run.batcher._line.check_integrity()

    async def client(run: Running, rng: random.Random) -> None:
        for _ in range(10):
            count = rng.choice([1, 1, 2, 20])
            sequences = [[rng.randrange(500) for _ in range(rng.randint(1, 64))] for _ in range(count)]
            task = run.encode(sequences)
            if rng.random() < cancel_share:
                await asyncio.sleep(rng.random() * 0.003)
                task.cancel()
                await asyncio.wait({task})
                continue
            assert (await task).tolist() == [row_of(token_ids) for token_ids in sequences]

    run_async(test)


@pytest.mark.parametrize("forward", [PADDED, FLAT])
def test_as_many_forwards_are_launched_as_may_be_in_flight(forward: ForwardSpec) -> None:
    async def test() -> None:
        async with running(forward=forward) as run:
            tasks = await run.encode_while_busy([[[9] * 64]])
            await until(lambda: len(run.model.batches) == forward.max_in_flight)
            await asyncio.sleep(0.02)
            assert len(run.model.batches) == forward.max_in_flight
            run.model.gate.set()
            await asyncio.gather(*tasks)

    run_async(test)


def test_a_lone_request_on_an_idle_model_is_not_held() -> None:
    async def test() -> None:
        async with running(BatcherSpec(8, 0.3, 200, hold_s=3600)) as run:
            await asyncio.wait_for(run.encode([[1, 2]]), 10)
            await asyncio.wait_for(run.encode([[3]]), 10)

    run_async(test)


def test_after_a_shared_batch_a_request_is_held_for_company() -> None:
    async def test() -> None:
        async with running(BatcherSpec(8, 0.3, 10**6, hold_s=3600)) as run:
            tasks = await run.encode_while_busy([[[1, 2]], [[3, 4]]])
            run.model.gate.set()
            await asyncio.gather(*tasks)
            assert run.model.batches[-1] == [[1, 2], [3, 4]]
            lone = run.encode([[5]])
            await asyncio.sleep(0.02)
            assert not lone.done()
            await asyncio.gather(lone, run.encode([[6]]))
            assert run.model.batches[-1] == [[5], [6]]

    run_async(test)


def test_requests_that_wait_share_a_batch_by_length() -> None:
    async def test() -> None:
        async with running(forward=ForwardSpec(32)) as run:
            tasks = await run.encode_while_busy([[[1] * 12], [[2] * 2, [3] * 11], [[4] * 2]])
            run.model.gate.set()
            await asyncio.gather(*tasks)
            assert run.model.batches[2:] == [[[3] * 11, [1] * 12], [[2] * 2, [4] * 2]]

    run_async(test)


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    async def test() -> None:
        async with running() as run:
            await run.encode([[1]])
            tasks = await run.encode_while_busy([[[1] * 60] * 3])
            with pytest.raises(OverloadedError, match=r"180 of 200") as refused:
                await run.encode([[1] * 21])
            assert refused.value.retry_after_s is not None
            tasks.append(run.encode([[1] * 20]))
            run.model.gate.set()
            await asyncio.gather(*tasks)

    run_async(test)


def test_a_request_larger_than_the_queue_is_served_when_nothing_waits() -> None:
    async def test() -> None:
        async with running() as run:
            sequences = [[number] * 50 for number in range(40)]
            assert (await run.encode(sequences)).tolist() == [row_of(token_ids) for token_ids in sequences]

    run_async(test)


def test_abandoned_work_never_reaches_the_model() -> None:
    async def test() -> None:
        async with running() as run:
            tasks = await run.encode_while_busy([[[7] * 64], [[8] * 5]])
            for task in tasks[1:]:
                task.cancel()
            await asyncio.wait(tasks[1:])
            assert run.batcher.num_waiting_rows == 0
            assert run.batcher.num_waiting_tokens == 0
            tasks[0].cancel()  # one half is inside the forward, the other already with the thread
            run.model.gate.set()
            await run.encode([[9]])
            assert run.model.batches == [[[2] * 64], [[9]]]

    run_async(test)


def test_of_a_failed_batch_only_the_request_at_fault_fails() -> None:
    async def test() -> None:
        async with running() as run:
            tasks = await run.encode_while_busy([[[POISON] * 9, [1] * 30], [[5] * 9], [[6] * 60]])
            run.model.gate.set()
            first, poisoned, neighbour, other = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(first, np.ndarray)
            assert isinstance(poisoned, InternalError)
            assert isinstance(neighbour, np.ndarray)
            assert neighbour.tolist() == [row_of([5] * 9)]
            assert [[5] * 9] in run.model.batches  # it ran again, alone
            assert isinstance(other, np.ndarray)
            assert (await run.encode([[4]])).tolist() == [row_of([4])]
            assert run.batcher.state == "ready"

    run_async(test)


def test_a_row_that_is_no_number_fails_its_request_alone() -> None:
    async def test() -> None:
        async with running() as run:
            tasks = await run.encode_while_busy([[[HOLLOW] * 9, [5] * 9], [[6] * 9]])
            run.model.gate.set()
            _, hollow, neighbour = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(hollow, InternalError)
            assert isinstance(neighbour, np.ndarray)
            assert neighbour.tolist() == [row_of([6] * 9)]

    run_async(test)


def test_a_dead_thread_fails_everyone_and_says_so() -> None:
    async def test() -> None:
        async with running() as run:
            tasks = await run.encode_while_busy([[[DEADLY]], [[5] * 60], [[6] * 30]])
            run.model.gate.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[0], np.ndarray)
            assert sum(isinstance(result, EngineDeadError) for result in results[1:]) >= 1
            await until(lambda: run.batcher.state == "failed")
            with pytest.raises(EngineDeadError):
                await run.encode([[1]])
            assert run.deaths == ["the model thread died of SystemExit"]

    run_async(test)


def test_until_the_model_is_loaded_nothing_is_accepted() -> None:
    async def test() -> None:
        run = Running(FakeModel(), SPEC)
        run.batcher.start()
        assert run.batcher.state == "loading"
        with pytest.raises(NotReadyError):
            await run.batcher.encode([[1]])
        await until(lambda: run.batcher.state == "ready")
        await run.batcher.stop()

    run_async(test)


def test_a_model_that_cannot_be_loaded_is_reported_in_its_own_words() -> None:
    def load() -> FakeModel:
        raise StartError("no such folder")

    async def test() -> None:
        deaths: list[str] = []
        batcher = MicroBatcher("test-model", load, SPEC, on_batch=lambda report: None, on_dead=deaths.append)
        batcher.start()
        await until(lambda: batcher.state == "failed")
        await batcher.stop()
        assert deaths == ["no such folder"]

    run_async(test)


def test_stopping_answers_those_who_wait() -> None:
    async def test() -> None:
        async with running() as run:
            tasks = await run.encode_while_busy([[[5] * 60]])
            stopping = asyncio.create_task(run.batcher.stop())
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, NotReadyError) for result in results)
            run.model.gate.set()
            await stopping

    run_async(test)
