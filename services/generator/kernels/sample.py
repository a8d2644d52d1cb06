"""Draws a token for each row: by temperature, from the likeliest ones where a row asks for that, without a sort.

Semantics:  the token of row n is the lowest id up to which the tokens that are kept weigh more than uniforms[n] of all of them; one
            of logit x weighs exp((x - highest) / temperature), as a fixed-point number, so that sums are exact and the same in
            any order. `reference/sample.py` says which are kept. A row at temperature 0 takes its likeliest token.
Tile map:   program n reads row n, some times over. What is kept is all that is above some logit, and of the tokens at that logit
            those of the lowest ids, as many as are needed. The logit is found by halving the span in which it must be.
Source:     inversion, Devroye, "Non-Uniform Random Variate Generation", 1986, §III.2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import check_dtype, check_floats, check_last_axis, check_shape
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs

ONE = tl.constexpr(2**40)
"""What the likeliest token weighs; the others' weights are rounded down to whole numbers. The sum of 2**22 tokens fits in int64."""


def sample(
    ids: Tensor,
    logits: Tensor,
    temperature: Tensor,
    filters: tuple[Tensor, Tensor, Tensor] | None,
    uniforms: Tensor,
) -> None:
    """Choose for each row.

    Args:
        ids: [N] int64. Mutated.
        logits: [N, V] fp16, bf16 or fp32, contiguous on the last axis. NaN counts as minus infinity; the first of plus infinity is
            taken, and the first of all where there is nothing else.
        temperature: [N] fp32; 0 takes the likeliest.
        filters: top_k [N] int64, 0 for all; top_p [N] fp32, 1 for all; min_p [N] fp32, 0 for all. None where no row has one.
        uniforms: [N] fp64 in [0, 1).
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_shape("logits", logits, None, None)
    check_floats(logits=logits)
    top_k, top_p, min_p = filters or (ids, temperature, temperature)
    integers, floats = {"ids": ids, "top_k": top_k}, {"temperature": temperature, "top_p": top_p, "min_p": min_p}
    for name, values in {**integers, **floats, "uniforms": uniforms}.items():
        check_shape(name, values, len(logits))
    check_dtype(torch.int64, **integers)
    check_dtype(torch.float32, **floats)
    check_dtype(torch.float64, uniforms=uniforms)
    check_last_axis(logits=logits, uniforms=uniforms, **integers, **floats)
    _sample_kernel[(len(logits),)](
        ids,
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        uniforms,
        logits.shape[1],
        logits.stride(0),
        HAS_FILTERS=filters is not None,
        BLOCK_V=BLOCK_V,
        num_warps=NUM_WARPS,
        **overlap_options(logits),
    )


@triton.jit
def _sample_kernel(
    ids_ptr,
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniforms_ptr,
    vocab_size,
    stride_logitsn,
    HAS_FILTERS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_begin(OVERLAPS)
    wait_for_inputs(OVERLAPS)
    # --- which row is mine ---
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride_logitsn
    temperature = tl.load(temperature_ptr + row)
    highest, chosen = _likeliest(logits_ptr, vocab_size, BLOCK_V)
    if (temperature > 0) & (tl.abs(highest) < float("inf")):
        scale = 1.4426950408889634 / temperature  # of a power of 2
        bound = tl.zeros([], tl.int64)
        if HAS_FILTERS:
            bound = (tl.load(min_p_ptr + row) * ONE).to(tl.int64)
        # --- what is kept: all above `lowest`, and up to `last_id` those at it ---
        lowest, count, mass = _not_below(bound, logits_ptr, vocab_size, highest, scale, BLOCK_V)
        last_id = vocab_size
        if HAS_FILTERS:
            num_last = count
            top_k = tl.load(top_k_ptr + row)
            if (top_k > 0) & (top_k < count):
                lowest, above = _reaches(top_k, lowest, logits_ptr, vocab_size, highest, scale, True, BLOCK_V)
                num_last = top_k - above
                mass = _mass_above(lowest, logits_ptr, vocab_size, highest, scale, BLOCK_V)
                mass += num_last * _weigh(lowest, highest, scale)
            top_p = tl.load(top_p_ptr + row)
            if top_p < 1:
                goal = tl.maximum(tl.ceil(top_p.to(tl.float64) * mass.to(tl.float64)).to(tl.int64), 1)
                first_lowest = lowest
                lowest, above = _reaches(goal, lowest, logits_ptr, vocab_size, highest, scale, False, BLOCK_V)
                weight = _weigh(lowest, highest, scale)
                needed = tl.cdiv(goal - above, weight)
                num_last = tl.where(lowest == first_lowest, tl.minimum(num_last, needed), needed)
                mass = above + num_last * weight
            if num_last < count:
                last_id = _first_beyond(
                    num_last - 1, lowest, vocab_size, logits_ptr, vocab_size, highest, scale, True, BLOCK_V
                )
        # --- draw ---
        target = tl.minimum((tl.load(uniforms_ptr + row) * mass.to(tl.float64)).to(tl.int64), mass - 1)
        chosen = _first_beyond(target, lowest, last_id, logits_ptr, vocab_size, highest, scale, False, BLOCK_V)
    # --- store ---
    tl.store(ids_ptr + row, chosen.to(tl.int64))


@triton.jit
def _tile(first, logits_ptr, vocab_size, BLOCK_V: tl.constexpr):
    """Logits from `first` on in fp32, minus infinity for NaN and past the end, and their ids."""
    ids = first + tl.arange(0, BLOCK_V)
    logits = tl.load(logits_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    return tl.where(logits == logits, logits, float("-inf")), ids


@triton.jit
def _weigh(logits, highest, scale):
    return (tl.exp2((logits - highest) * scale) * ONE).to(tl.int64)


@triton.jit
def _likeliest(logits_ptr, vocab_size, BLOCK_V: tl.constexpr):
    """The highest logit, and the lowest id that has it."""
    best = tl.full([BLOCK_V], float("-inf"), tl.float32)
    best_ids = tl.arange(0, BLOCK_V)
    for first in range(0, vocab_size, BLOCK_V):
        logits, ids = _tile(first, logits_ptr, vocab_size, BLOCK_V)
        is_better = logits > best
        best = tl.where(is_better, logits, best)
        best_ids = tl.where(is_better, ids, best_ids)
    highest = tl.max(best, axis=0)
    return highest, tl.minimum(tl.min(tl.where(best == highest, best_ids, vocab_size), axis=0), vocab_size - 1)


@triton.jit
def _not_below(bound, logits_ptr, vocab_size, highest, scale, BLOCK_V: tl.constexpr):
    """Of the tokens that weigh at least `bound`: their lowest logit, their number, and what they weigh together."""
    lowest = tl.full([BLOCK_V], float("inf"), tl.float32)
    counts = tl.zeros([BLOCK_V], tl.int32)
    masses = tl.zeros([BLOCK_V], tl.int64)
    for first in range(0, vocab_size, BLOCK_V):
        logits, _ = _tile(first, logits_ptr, vocab_size, BLOCK_V)
        weights = _weigh(logits, highest, scale)
        is_in = (weights >= bound) & (logits > float("-inf"))
        lowest = tl.where(is_in, tl.minimum(lowest, logits), lowest)
        counts += is_in.to(tl.int32)
        masses += tl.where(is_in, weights, 0)
    return tl.min(lowest, axis=0), tl.sum(counts, axis=0).to(tl.int64), tl.sum(masses, axis=0)


@triton.jit
def _mass_above(lowest, logits_ptr, vocab_size, highest, scale, BLOCK_V: tl.constexpr):
    """What the tokens weigh whose logits are above `lowest`."""
    masses = tl.zeros([BLOCK_V], tl.int64)
    for first in range(0, vocab_size, BLOCK_V):
        logits, _ = _tile(first, logits_ptr, vocab_size, BLOCK_V)
        masses += tl.where(logits > lowest, _weigh(logits, highest, scale), 0)
    return tl.sum(masses, axis=0)


@triton.jit
def _reaches(goal, low, logits_ptr, vocab_size, highest, scale, COUNTS: tl.constexpr, BLOCK_V: tl.constexpr):
    """The highest logit down to which the tokens come to `goal`, in number or in weight, and what those above it come to.

    Down to `low` they do. Every turn halves the span and draws its ends in to logits that are there.
    """
    high = highest
    above = tl.zeros([], tl.int64)
    while low < high:
        middle = tl.maximum(
            low * 0.5 + high * 0.5, low
        )  # whose sum does not overflow, and may be rounded to below `low`
        middle = tl.where(middle < high, middle, low)  # two neighbours have none between them
        reached = tl.zeros([BLOCK_V], tl.int64)
        next_above = tl.full([BLOCK_V], float("inf"), tl.float32)
        next_below = tl.full([BLOCK_V], float("-inf"), tl.float32)
        for first in range(0, vocab_size, BLOCK_V):
            logits, _ = _tile(first, logits_ptr, vocab_size, BLOCK_V)
            is_above = logits > middle
            reached += tl.where(is_above, 1 if COUNTS else _weigh(logits, highest, scale), 0)
            next_above = tl.where(is_above, tl.minimum(next_above, logits), next_above)
            next_below = tl.where(is_above, next_below, tl.maximum(next_below, logits))
        total = tl.sum(reached, axis=0)
        if total >= goal:
            low = tl.min(next_above, axis=0)
        else:
            high = tl.max(next_below, axis=0)
            above = total
    return high, above


@triton.jit
def _first_beyond(
    goal, lowest, last_id, logits_ptr, vocab_size, highest, scale, COUNTS: tl.constexpr, BLOCK_V: tl.constexpr
):
    """The lowest id up to which the tokens at `lowest` are more than `goal`, or all that is kept weighs more."""
    found = vocab_size - 1
    before = tl.zeros([], tl.int64)
    first = 0
    while (first < vocab_size) & (before <= goal):
        logits, ids = _tile(first, logits_ptr, vocab_size, BLOCK_V)
        is_last = (logits == lowest) & (ids <= last_id)
        weights = tl.where(is_last | (logits > lowest), _weigh(logits, highest, scale), 0)
        values = is_last.to(tl.int64) if COUNTS else weights
        inside = tl.sum(values, axis=0)
        if before + inside > goal:
            found = first + tl.sum((before + tl.cumsum(values, axis=0) <= goal).to(tl.int32), axis=0)
        before += inside
        first += BLOCK_V
    return found


BLOCK_V, NUM_WARPS = 8192, 16
"""H200, 2026-12-01."""
