"""Adapter commands and the engines they are sent to: errors by their class, lost calls, and what the next engine is told again."""

import asyncio

import pytest

from services.generator.core.messages import AdapterAnswer, AdapterOutcome, LoadAdapter, PinAdapter, UnloadAdapter
from services.generator.engine.adapter_calls import AdapterCalls
from shared.errors import AdapterConflictError, EngineDeadError, InternalError


class Sent(list):
    """Commands that were sent, the last of which `calls` answers at once."""

    def __init__(self):
        super().__init__()
        self.calls = AdapterCalls(self.append)

    def do(self, make, outcome, **refusal):
        async def both():
            call = asyncio.create_task(self.calls.call(make))
            await asyncio.sleep(0)
            self.calls.take(AdapterAnswer(self[-1].call_id, outcome, **refusal))
            return await call

        return asyncio.run(both())


def load(name):
    return lambda call_id: LoadAdapter(call_id, name, f"folder-{name}")


def pin(name):
    return lambda call_id: PinAdapter(call_id, name, is_pinned=True)


def test_a_refusal_has_the_class_and_the_field_of_the_engine():
    sent = Sent()
    with pytest.raises(AdapterConflictError, match="in use") as caught:
        sent.do(load("a"), None, error="adapter_conflict", problem="in use", param="lora_name")
    assert caught.value.param == "lora_name"
    with pytest.raises(InternalError):
        sent.do(load("a"), None, error="something_else")


def test_a_call_ends_with_its_engine():
    sent = Sent()

    async def lose():
        call = asyncio.create_task(sent.calls.call(load("a")))
        await asyncio.sleep(0)
        sent.calls.lose()
        await call

    with pytest.raises(EngineDeadError):
        asyncio.run(lose())


def test_the_next_engine_gets_what_is_loaded_and_then_what_is_pinned_of_it():
    sent = Sent()
    for name in "abc":
        sent.do(load(name), AdapterOutcome.LOADED)
    sent.do(pin("a"), AdapterOutcome.PINNED)
    sent.do(pin("listed"), AdapterOutcome.PINNED)
    sent.do(lambda call_id: UnloadAdapter(call_id, "b", drains=True), AdapterOutcome.DRAINING)
    sent.do(load("dry"), AdapterOutcome.CHECKED)
    sent.clear()
    sent.calls.restore()
    assert [(type(command), command.name) for command in sent] == [
        (LoadAdapter, "a"),
        (LoadAdapter, "c"),
        (PinAdapter, "listed"),
    ]
    sent.calls.take(AdapterAnswer(sent[0].call_id, AdapterOutcome.LOADED))
    assert (type(sent[-1]), sent[-1].name) == (PinAdapter, "a")
