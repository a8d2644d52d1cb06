"""Which waiting sequences go into the next padded batch: neighbours in length around the one that must go.

Called by MicroBatcher. A pure function, so that its promises can be tested without threads or models.
Its cost depends on the limits, not on how much is waiting.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class BatchLimits:
    """What one forward may hold.

    Attributes:
        max_tokens: sequences times the longest of them, so padding counts.
        max_rows: sequences.
        max_padding_share: padding as a share of the padded batch, 0 to 1.
    """

    max_tokens: int
    max_rows: int
    max_padding_share: float


def choose_window(lengths: Sequence[int], anchor: int, limits: BatchLimits) -> tuple[int, int]:
    """The window [first, end) of `lengths` that holds `anchor`, keeps `limits` and carries the most tokens.

    The anchor alone is always allowed, so that nothing waits for ever.

        lengths   3 4 4 7 8 8 9 30      ascending
                        ^ anchor
                    [first  end)        end·max_rows and end·lengths[end-1] are bounded, so the search is short

    Args:
        lengths: token counts in ascending order.
        anchor: index that must be inside.
    """
    base = max(0, anchor + 1 - limits.max_rows)
    sums = list(accumulate(lengths[base : anchor + limits.max_rows], initial=0))  # sums[i]: tokens of [base, base + i)
    best, best_tokens = (anchor, anchor + 1), lengths[anchor]
    for end in range(anchor + 1, min(len(lengths), anchor + limits.max_rows) + 1):
        longest = lengths[end - 1]
        max_rows = min(limits.max_rows, limits.max_tokens // longest)
        if max_rows < end - anchor:
            break
        # Dropping the shortest sequence always lowers the share of padding, so the first that fits can be bisected.
        lowest = max(base, end - max_rows)
        first = lowest + bisect_left(
            range(lowest, anchor + 1),
            True,
            key=lambda i, end=end, longest=longest: (  # type: ignore[misc]
                (end - i) * longest * (1 - limits.max_padding_share) <= sums[end - base] - sums[i - base]
            ),
        )
        tokens = sums[end - base] - sums[first - base]
        if first <= anchor and tokens > best_tokens:
            best, best_tokens = (first, end), tokens
    return best
