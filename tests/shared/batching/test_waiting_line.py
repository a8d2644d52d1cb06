"""The ledger of waiting sequences: its counts after any sequence of adding, taking and dropping, and who goes first.

check_integrity runs after every operation.
"""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.batching.length_window import BatchLimits
from shared.batching.waiting_line import PendingRequest, WaitingLine

LIMITS = BatchLimits(max_tokens=40, max_rows=6, max_padding_share=0.3)
ADD = st.lists(st.integers(1, 40), min_size=1, max_size=8)
MANY = st.lists(st.integers(1, 40), min_size=60, max_size=90)  # beside these, a few are inserted one by one


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def make_request(loop: asyncio.AbstractEventLoop, lengths: list[int]) -> PendingRequest:
    return PendingRequest(loop.create_future(), 0.0, [[1] * length for length in lengths], len(lengths))


@given(st.lists(st.one_of(ADD, MANY, st.just("take"), st.integers(0, 5)), max_size=40))
def test_counts_hold_after_any_operations(
    loop: asyncio.AbstractEventLoop, operations: list[list[int] | str | int]
) -> None:
    line = WaitingLine()
    added: list[PendingRequest] = []
    left: dict[PendingRequest, set[int]] = {}
    for operation in operations:
        if isinstance(operation, list):
            request = make_request(loop, operation)
            line.add(request)
            added.append(request)
            left[request] = set(range(len(operation)))
        elif isinstance(operation, int):
            if operation < len(added):
                line.drop(added[operation])
                left.pop(added[operation], None)
        elif len(line) > 0:
            oldest = line.oldest
            taken = line.take(LIMITS)
            assert oldest in [item.request for item in taken], "the oldest request is in every batch"
            for item in taken:
                left[item.request].remove(item.index)
        left = {request: indices for request, indices in left.items() if indices}
        line.check_integrity()
        assert list(left) == line.requests
        assert sum(map(len, left.values())) == len(line)


def test_the_longest_of_the_oldest_request_leads(loop: asyncio.AbstractEventLoop) -> None:
    line = WaitingLine()
    first, second = make_request(loop, [3, 9, 4]), make_request(loop, [10, 8, 30])
    line.add(first)
    line.add(second)
    taken = [(item.request is first, item.length) for item in line.take(LIMITS)]
    assert taken == [(True, 4), (False, 8), (True, 9), (False, 10)]
    assert [item.length for item in line.take(LIMITS)] == [3]
    assert [item.length for item in line.take(LIMITS)] == [30]
    assert len(line) == line.num_tokens == line.num_requests == 0
