"""Turns the log-probability arrays of a step into what each request asked for.

Used by `Scheduler.commit`. A step computes as many likeliest tokens as its most curious row wants; others get fewer.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Rows

from services.generator.core.messages import TokenLogprob
from services.generator.core.plan import LogprobArrays
from services.generator.core.request import Request
from services.generator.core.sequence import Sequence


def token_logprob(request: Request, arrays: LogprobArrays, index: int) -> TokenLogprob | None:
    """Entry `index` as `request` wants it, or None where it wants nothing."""
    num_top = request.sampling.logprobs
    return None if num_top is None else _entry(num_top, arrays, index)


def _entry(num_top: int, arrays: LogprobArrays, index: int) -> TokenLogprob:
    ids, values = arrays.top_ids[index, :num_top].tolist(), arrays.top[index, :num_top].tolist()
    return TokenLogprob(float(arrays.chosen[index]), list(zip(ids, values, strict=True)))


def prompt_logprobs(
    scored: Rows[tuple[Sequence, int]], arrays: LogprobArrays | None
) -> Iterator[tuple[Sequence, list[TokenLogprob]]]:
    """(sequence, its entries) for the prompt tokens that a step scored."""
    if arrays is None:
        return
    start = 0
    for sequence, count in scored:
        num_top = sequence.request.sampling.prompt_logprobs or 0
        yield sequence, [_entry(num_top, arrays, index) for index in range(start, start + count)]
        start += count
