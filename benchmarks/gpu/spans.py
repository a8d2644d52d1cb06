"""Tables of what ran on a device, by families of kernels; made by `profile` from its traces.

Kernels begin before the one before ends, and wait there: such time counts once, for the kernel that began first, so that families
add up to the time in which the device is busy. Times are microseconds of one clock.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

STEP_MARKS = ("_argmax_kernel", "_sample_kernel")
"""A step runs one of them, once."""

FAMILIES = (
    ("LoRA, rank-r side", r"lora_shrink"),
    ("LoRA, wide side, with its activation", r"lora_expand|lora_silu_mul"),
    ("attention", r"attention"),
    ("norms, rotary and KV write, activation", r"rms_norm|rope_kv|silu_mul"),
    (
        "choice of the token, indices, copies",
        r"argmax|_sample_|step_indices|[Mm]emcpy|[Mm]emset|index|copy|elementwise",
    ),
    ("products", r"skinny_linear|gemm|gemv|nvjet|cutlass|cublas|splitK|xmma"),
)
"""The first whose pattern is in a kernel's name; what fits none is `other`, with its names."""


class Span(NamedTuple):
    """One kernel or copy on the device, in microseconds."""

    name: str
    start: float
    end: float


def step_table(spans: Iterable[Span]) -> list[str]:
    """Lines: milliseconds a decode step by family, the step itself, and the share of it in which something runs.

    Whole steps, from the first choice of tokens to the last one.

    Raises:
        SystemExit: there are not two choices.
    """
    spans = sorted(spans, key=lambda span: span.start)
    marks = [span.start for span in spans if span.name.startswith(STEP_MARKS)]
    num_steps = len(marks) - 1
    if num_steps < 1:
        raise SystemExit("no whole step was traced")
    first, last = marks[0], marks[-1]
    within = one_after_another((span for span in spans if first <= span.start < last), last)
    step_us, busy = (last - first) / num_steps, _total_us(within) / (last - first)
    total = f"{'step':42} {step_us / 1000:7.3f} ms, mean of {num_steps}; the device is busy for {busy:.1%}"
    return [*_family_lines(within, num_steps), total]


def call_table(call: Span, spans: Iterable[Span]) -> list[str]:
    """Lines: milliseconds of one call by family, the call itself, and where in it the device has nothing to do.

    Args:
        call: on the host.

    Raises:
        SystemExit: nothing ran on the device within the call.
    """
    within = sorted((span for span in spans if call.start <= span.start < call.end), key=lambda span: span.start)
    if not within:
        raise SystemExit("nothing was traced on a device")
    first, last = within[0].start, max(span.end for span in within)
    within = one_after_another(within, last)
    busy = _total_us(within) / (last - first)
    before, after = (first - call.start) / 1000, (call.end - last) / 1000
    return [
        *_family_lines(within, 1),
        f"{call.name:42} {(call.end - call.start) / 1000:7.3f} ms, traced",
        f"{'  before the first kernel':42} {before:7.3f} ms",
        f"{'  after the last one':42} {after:7.3f} ms",
        f"{'  between':42} {(last - first) / 1000:7.3f} ms; the device is busy for {busy:.1%}",
    ]


def _family_lines(spans: Sequence[Span], num_calls: int) -> list[str]:
    families, others = defaultdict[str, float](float), defaultdict[str, float](float)
    for span in spans:
        family = family_of(span.name)
        families[family] += span.end - span.start
        if family == "other":
            others[span.name[:60]] += span.end - span.start
    lines = [f"{family:42} {total / num_calls / 1000:7.3f} ms" for family, total in _largest(families)]
    return lines + [f"  {name:60} {total / num_calls / 1000:7.3f} ms" for name, total in _largest(others)[:5]]


def _largest(totals: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(totals.items(), key=lambda item: -item[1])


def family_of(name: str) -> str:
    """The family of a kernel."""
    return next((family for family, pattern in FAMILIES if re.search(pattern, name)), "other")


def one_after_another(spans: Iterable[Span], until: float) -> list[Span]:
    """The spans, given in the order of their starts, each without what those before it cover; none beyond `until`."""
    parts, covered = [], float("-inf")
    for span in spans:
        start, end = max(span.start, covered), min(span.end, until)
        if start < end:
            parts.append(Span(span.name, start, end))
            covered = end
    return parts


def _total_us(spans: Iterable[Span]) -> float:
    return sum(span.end - span.start for span in spans)
