"""Greedy choice: the id of each row's largest logit.

Semantics:  ids[n] = the lowest v at which logits[n, v] is largest. NaN counts as the smallest of all, so that
            the answer is always an id.
Tile map:   program n reads row n.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import check_dtype, check_floats, check_last_axis, check_shape
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def argmax(ids: Tensor, logits: Tensor) -> None:
    """Choose for each row.

    Args:
        ids: [N] int64. Mutated.
        logits: [N, V] fp16, bf16 or fp32, contiguous on the last axis.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_shape("logits", logits, None, None)
    check_shape("ids", ids, len(logits))
    check_dtype(torch.int64, ids=ids)
    check_floats(logits=logits)
    check_last_axis(logits=logits)
    _argmax_kernel[(len(logits),)](
        ids, logits, logits.shape[1], logits.stride(0), BLOCK_V=BLOCK_V, num_warps=NUM_WARPS, **overlap_options(logits)
    )


@triton.jit
def _argmax_kernel(ids_ptr, logits_ptr, vocab_size, stride_logitsn, BLOCK_V: tl.constexpr, OVERLAPS: tl.constexpr):
    let_next_begin(OVERLAPS)
    wait_for_inputs(OVERLAPS)
    # --- which tile is mine ---
    row = tl.program_id(0).to(tl.int64)
    offs_v = tl.arange(0, BLOCK_V)
    # --- load, compute (fp32) ---
    best = tl.full([BLOCK_V], float("-inf"), tl.float32)
    best_ids = offs_v
    for first in range(0, vocab_size, BLOCK_V):
        ids = first + offs_v
        logits = tl.load(logits_ptr + row * stride_logitsn + ids, mask=ids < vocab_size, other=float("-inf"))
        logits = logits.to(tl.float32)
        is_better = logits > best  # not for NaN, and not for an equal one: the lower id stays
        best = tl.where(is_better, logits, best)
        best_ids = tl.where(is_better, ids, best_ids)
    highest = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == highest, best_ids, vocab_size - 1), axis=0)
    # --- store ---
    tl.store(ids_ptr + row, tl.minimum(chosen, vocab_size - 1).to(tl.int64))


BLOCK_V, NUM_WARPS = 8192, 8
"""H200, 2026-11-30."""
