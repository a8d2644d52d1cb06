"""What a reader that fell behind gets: several events as one, with nothing lost on the way."""

import asyncio

import pytest

from services.generator.core.messages import TokenEvent, TokenLogprob
from services.generator.core.request import FinishReason
from services.generator.engine.token_stream import TokenStream
from shared.errors import EngineDeadError


def entry(value):
    return TokenLogprob(value, [(1, value)])


def read_all(*events):
    async def run():
        waiter: asyncio.Queue = asyncio.Queue()
        for event in events:
            waiter.put_nowait(event)
        stream = TokenStream(lambda _request_id: None, 7, waiter)
        return [event async for event in stream]

    return asyncio.run(run())


def test_events_are_merged_with_all_they_carry():
    (merged,) = read_all(
        TokenEvent(7, [], prompt_logprobs=[entry(-1.0)]),
        TokenEvent(7, [], prompt_logprobs=[entry(-2.0)]),
        TokenEvent(7, [3], num_cached_tokens=16, logprobs=[entry(-3.0)]),
        TokenEvent(7, [4], FinishReason.LENGTH, logprobs=[entry(-4.0)]),
    )
    assert merged.token_ids == [3, 4]
    assert merged.finish_reason is FinishReason.LENGTH
    assert merged.num_cached_tokens == 16
    assert merged.prompt_logprobs == [entry(-1.0), entry(-2.0)]
    assert merged.logprobs == [entry(-3.0), entry(-4.0)]


def test_every_field_of_an_event_is_merged():
    """A new field that `_merged` forgets would be lost only under load."""
    assert set(TokenEvent.__struct_fields__) == {
        "request_id",
        "token_ids",
        "finish_reason",
        "num_cached_tokens",
        "logprobs",
        "prompt_logprobs",
        "adapter_digest",
        "problem",
    }


def test_a_dead_engine_is_an_error_unless_the_request_had_ended():
    with pytest.raises(EngineDeadError):
        read_all(TokenEvent(7, [3]), None)
    assert read_all(TokenEvent(7, [3], FinishReason.STOP), None)[0].token_ids == [3]
