"""Turns the log-probability arrays of a step into what each request asked for.

Used by `Scheduler.commit`. A step computes as many likeliest tokens as its most curious row wants; others get fewer.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Rows

from services.generator.core.messages import TokenLogprob
from services.generator.core.plan import LogprobArrays
from services.generator.core.sequence import Sequence


def token_logprob(num_top: int | None, arrays: LogprobArrays | None, index: int) -> TokenLogprob | None:
    """Entry `index` for a request that wants `num_top` likeliest tokens, or None for one that wants nothing."""
    if num_top is None or arrays is None:
        return None
    ids, values = arrays.top_ids[index, :num_top].tolist(), arrays.top[index, :num_top].tolist()
    return TokenLogprob(float(arrays.chosen[index]), list(zip(ids, values, strict=True)))


def prompt_logprobs(
    scored: Rows[tuple[Sequence, int]], arrays: LogprobArrays | None
) -> Iterator[tuple[Sequence, list[TokenLogprob]]]:
    """(sequence, its entries) for the prompt tokens that a step scored."""
    start = 0
    for sequence, count in scored:
        num_top = sequence.request.sampling.prompt_logprobs
        entries = [token_logprob(num_top, arrays, index) for index in range(start, start + count)]
        yield sequence, [entry for entry in entries if entry is not None]
        start += count
