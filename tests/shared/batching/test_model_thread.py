"""What the thread promises by itself; what a batcher makes of it is in `test_micro_batcher.py`."""

import asyncio
from dataclasses import dataclass

import pytest

from shared.batching.model_thread import ForwardSpec, ModelThread, Outcome
from tests.shared.batching.fake_model import FakeModel, row_of


@dataclass(frozen=True)
class OneSequence:
    """A batch of one."""

    token_ids: list[int]

    def take_live(self) -> list[list[int]]:
        return [self.token_ids]


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_what_was_submitted_before_the_stop_is_finished(max_in_flight: int) -> None:
    async def test() -> None:
        model = FakeModel(ForwardSpec(64, max_in_flight=max_in_flight))
        model.gate.clear()
        finished: list[tuple[OneSequence, Outcome]] = []
        is_loaded = asyncio.Event()
        thread: ModelThread[FakeModel, OneSequence] = ModelThread(
            "test",
            lambda: model,
            on_loaded=lambda _: is_loaded.set(),
            on_finished=lambda batch, outcome: finished.append((batch, outcome)),
            on_dead=pytest.fail,
        )
        thread.start()
        await asyncio.wait_for(is_loaded.wait(), 30)
        batches = [OneSequence([number + 1]) for number in range(3)]
        thread.submit(batches[0])
        assert await asyncio.to_thread(model.is_inside.wait, 30)
        for batch in batches[1:]:
            thread.submit(batch)
        stopping = asyncio.create_task(thread.stop(30))
        await asyncio.sleep(0)  # the stop is behind the batches now
        model.gate.set()
        await stopping
        await asyncio.sleep(0)
        assert [batch for batch, _ in finished] == batches
        assert [outcome.rows.tolist() for _, outcome in finished if outcome.rows is not None] == [
            [row_of(batch.token_ids)] for batch in batches
        ]

    asyncio.run(test())
