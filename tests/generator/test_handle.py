"""What a reader that fell behind gets: several events as one, with nothing lost on the way."""

import asyncio
import contextlib

import pytest

from services.generator.core.messages import TokenEvent, TokenLogprob
from services.generator.core.request import FinishReason
from services.generator.engine.token_stream import TokenStream
from shared.errors import EngineDeadError


def entry(value):
    return TokenLogprob(value, [(1, value)])


def stream_of(*events, batch=1, request_id=7):
    """None stands for the end of the engine."""
    stream = TokenStream(lambda _request_id: None, request_id, batch)
    for event in events:
        stream.lose() if event is None else stream.put(event)
    return stream


def read_all(*events):
    async def run():
        return [event async for event in stream_of(*events)]

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


def test_a_reader_of_whole_answers_gets_steps_in_batches_and_the_end_at_once():
    async def run():
        stream = stream_of(batch=4, request_id=2)  # which begins with three
        sizes = []
        for number in range(1, 12):
            stream.put(TokenEvent(2, [number], FinishReason.LENGTH if number == 11 else None))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    sizes.append((number, len((await anext(stream)).token_ids)))
        return sizes

    assert asyncio.run(run()) == [(3, 3), (7, 4), (11, 4)]


def test_what_is_looked_at_ahead_waits_for_no_batch():
    async def run():
        stream = stream_of(TokenEvent(2, [], adapter_digest="ab"), batch=4, request_id=3)
        assert (await stream.peek()).adapter_digest == "ab"
        for number in range(4):
            stream.put(TokenEvent(2, [number]))
        return [(await anext(stream)).token_ids for _ in range(2)]

    assert asyncio.run(run()) == [[], [0, 1, 2, 3]]


def test_a_reader_of_whole_answers_hears_at_once_that_the_engine_is_gone():
    with pytest.raises(EngineDeadError):
        asyncio.run(anext(stream_of(TokenEvent(2, [1]), None, batch=4, request_id=3)))
