"""Ledger of the sequences that wait for a forward: whose they are, how long, who came first, what goes next.

Called by MicroBatcher on the event loop only. Owns no thread and no timer, and never runs anything.
Invariant (check_integrity): the line is ascending in length, and its counts are those of its sequences.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from shared.batching.length_window import BatchLimits, choose_window
from shared.batching.model_thread import Rows, Tokens
from shared.errors import InternalError


@dataclass(eq=False)
class PendingRequest:
    """One client's sequences and the rows that have come back for them; answered once, by `put` or by `fail`."""

    answer: asyncio.Future[Rows]
    submitted_at: float
    sequences: Sequence[Tokens]
    num_left: int
    rows: Rows | None = None

    def put(self, index: int, row: Rows) -> None:
        """Sequence `index` has come out as `row`."""
        if self.rows is None:
            self.rows = np.empty((len(self.sequences), row.shape[0]), np.float32)
        self.rows[index] = row
        self.num_left -= 1
        if self.num_left == 0 and not self.answer.done():
            self.answer.set_result(self.rows)

    def fail(self, error: Exception) -> None:
        """No more rows will come."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(eq=False, slots=True)
class WaitingItem:
    """One sequence of a request; `order` is its length and, among equals, its arrival."""

    request: PendingRequest
    index: int
    order: tuple[int, int]
    is_waiting: bool = True

    @property
    def tokens(self) -> Tokens:
        """The sequence."""
        return self.request.sequences[self.index]

    @property
    def length(self) -> int:
        """Its tokens."""
        return self.order[0]


@dataclass(eq=False)
class _Entry:
    """What waits of one request, ascending in length; `stack` may still hold, at its end, items that were taken."""

    stack: list[WaitingItem]
    num_waiting: int


@dataclass(eq=False)
class WaitingLine:
    """Sequences by length, requests by age."""

    num_tokens: int = 0
    _items: list[WaitingItem] = field(default_factory=list)
    _entries: dict[PendingRequest, _Entry] = field(default_factory=dict)
    _num_arrivals: int = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def num_requests(self) -> int:
        """Requests of which something waits."""
        return len(self._entries)

    @property
    def oldest(self) -> PendingRequest:
        """The request that has waited longest; there must be one."""
        return next(iter(self._entries))

    @property
    def requests(self) -> list[PendingRequest]:
        """All requests of which something waits, oldest first."""
        return list(self._entries)

    def add(self, request: PendingRequest) -> None:
        """Let all sequences of `request` wait."""
        stack = []
        for index, token_ids in enumerate(request.sequences):
            item = WaitingItem(request, index, (len(token_ids), self._num_arrivals))
            self._num_arrivals += 1
            stack.append(item)
            self.num_tokens += item.length
        stack.sort(key=_order)
        self._merge(stack)
        self._entries[request] = _Entry(stack, len(stack))

    def drop(self, request: PendingRequest) -> None:
        """Forget what waits of `request`, if anything does."""
        if request in self._entries:
            dropped = [item for item in self._entries[request].stack if item.is_waiting]
            gone = set(map(id, dropped))
            self._items = [item for item in self._items if id(item) not in gone]
            self._forget(dropped)

    def take(self, limits: BatchLimits) -> list[WaitingItem]:
        """The next batch: the longest sequence of the oldest request and neighbours in length, whoever's they are."""
        stack = self._entries[self.oldest].stack
        while not stack[-1].is_waiting:
            stack.pop()
        anchor = bisect_left(self._items, stack[-1].order, key=_order)
        start = max(0, anchor + 1 - limits.max_rows)  # no window reaches further, however much is waiting
        lengths = [item.length for item in self._items[start : anchor + limits.max_rows]]
        first, end = choose_window(lengths, anchor - start, limits)
        taken = self._items[start + first : start + end]
        del self._items[start + first : start + end]
        self._forget(taken)
        return taken

    def check_integrity(self) -> None:
        """Raise if a count or an order is wrong."""
        orders = [item.order for item in self._items]
        counts = {request: entry.num_waiting for request, entry in self._entries.items()}
        found: dict[PendingRequest, int] = {}
        for item in self._items:
            found[item.request] = found.get(item.request, 0) + 1
        if orders != sorted(orders) or counts != found or self.num_tokens != sum(length for length, _ in orders):
            raise InternalError("The waiting line's counts are wrong; this is a bug")

    def _merge(self, items: list[WaitingItem]) -> None:
        """Put ascending `items` into the line: few by searching their places, many by one pass over all."""
        if len(items) * _INSERTS_A_PASS < len(self._items):
            for item in items:
                insort(self._items, item, key=_order)
        else:
            self._items += items
            self._items.sort(key=_order)  # merges two ascending runs

    def _forget(self, items: Sequence[WaitingItem]) -> None:
        for item in items:
            item.is_waiting = False
            self.num_tokens -= item.length
            entry = self._entries[item.request]
            entry.num_waiting -= 1
            if entry.num_waiting == 0:
                del self._entries[item.request]


_order: Callable[[WaitingItem], tuple[int, int]] = attrgetter("order")
_INSERTS_A_PASS = 32
"""As many waiting sequences are passed over in the time that one insertion takes."""
