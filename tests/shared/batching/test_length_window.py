"""The choice of a batch from lengths alone: every limit kept, the anchor always inside, never worse than a slow search.

Hypothesis makes the lengths.
"""

from hypothesis import given
from hypothesis import strategies as st

from shared.batching.length_window import BatchLimits, choose_window

LIMITS = st.builds(
    BatchLimits,
    max_tokens=st.integers(1, 120),
    max_rows=st.integers(1, 12),
    max_padding_share=st.none() | st.floats(0, 0.9),
)


def is_allowed(window: list[int], limits: BatchLimits) -> bool:
    if limits.max_padding_share is None:
        return len(window) <= limits.max_rows and sum(window) <= limits.max_tokens
    padded = len(window) * window[-1]
    is_dense = len(window) * (window[-1] * (1 - limits.max_padding_share)) <= sum(window)
    return len(window) <= limits.max_rows and padded <= limits.max_tokens and is_dense


@given(st.lists(st.integers(1, 40), min_size=1, max_size=25), st.integers(0, 24), LIMITS)
def test_the_best_allowed_window_with_the_anchor(lengths: list[int], place: int, limits: BatchLimits) -> None:
    lengths.sort()
    anchor = place % len(lengths)
    first, end = choose_window(lengths, anchor, limits)
    assert first <= anchor < end
    allowed = [
        sum(lengths[i:j])
        for i in range(anchor + 1)
        for j in range(anchor + 1, len(lengths) + 1)
        if is_allowed(lengths[i:j], limits)
    ]
    assert sum(lengths[first:end]) == max([lengths[anchor], *allowed])
    assert end - first == 1 or is_allowed(lengths[first:end], limits)


def test_a_sequence_over_the_budget_goes_alone() -> None:
    assert choose_window([3, 50, 60], 1, BatchLimits(40, 8, 0.5)) == (1, 2)
