"""Which waiting sequences go into the next batch: neighbours in length around the one that must go.

Called by WaitingLine. A pure function of lengths, so that its promises can be tested without threads or models.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class BatchLimits:
    """What one forward may hold.

    Attributes:
        max_tokens: sequences times the longest of them, so padding counts; without padding their sum.
        max_rows: sequences.
        max_padding_share: padding as a share of the padded batch, 0 to 1; None for a model that does not pad.
    """

    max_tokens: int
    max_rows: int
    max_padding_share: float | None


def choose_window(lengths: Sequence[int], anchor: int, limits: BatchLimits) -> tuple[int, int]:
    """The window [first, end) of `lengths` that holds `anchor`, keeps `limits` and carries the most tokens.

    The anchor alone is always allowed, so that nothing waits for ever.

        lengths   3 4 4 7 8 8 9 30      ascending
                        ^ anchor
                      [first  end)      padded size (end - first) · lengths[end - 1]

    Args:
        lengths: token counts in ascending order.
        anchor: index that must be inside.
    """
    sums = list(accumulate(lengths, initial=0))
    best, best_tokens = (anchor, anchor + 1), lengths[anchor]
    for end in range(anchor + 1, len(lengths) + 1):
        first = _first_allowed(sums, lengths[end - 1], anchor, end, limits)
        if first is None:
            break
        tokens = sums[end] - sums[first]
        if first <= anchor and tokens > best_tokens:
            best, best_tokens = (first, end), tokens
    return best


def _first_allowed(sums: Sequence[int], longest: int, anchor: int, end: int, limits: BatchLimits) -> int | None:
    """The lowest start of a window that ends at `end`, beyond `anchor` if padding forbids; None if no longer window fits either."""
    if limits.max_padding_share is None:
        first = max(0, end - limits.max_rows, bisect_left(sums, sums[end] - limits.max_tokens))
        return first if first <= anchor else None
    max_rows = min(limits.max_rows, limits.max_tokens // longest)
    if max_rows < end - anchor:
        return None
    return _first_dense(sums, max(0, end - max_rows), anchor, end, longest * (1 - limits.max_padding_share))


def _first_dense(sums: Sequence[int], low: int, high: int, end: int, min_density: float) -> int:
    """The lowest start in [low, high] from which [start, end) has `min_density` tokens a row; high + 1 if none has.

    Found by bisection: dropping the shortest sequence always makes a window denser.
    """
    while low <= high:
        middle = (low + high) // 2
        if sums[end] - sums[middle] >= (end - middle) * min_density:
            high = middle - 1
        else:
            low = middle + 1
    return low
