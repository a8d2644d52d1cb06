"""Product of few rows with a weight, which is read once at the speed of memory; alone, or with the activation of a gated MLP.

Semantics:  out[p, t, n] = Σ_k x[t, k] · W[n, k] over the k of part p, and bias[n] in part 0; whoever reads `out` sums the parts.
            gated: out[t, f] = silu(g) · u, g and u the columns f and F + f of that product, all of k at once.
            fp32 sums, rounded once if at all.
Source:     Stream-K, arXiv:2301.03598, §3.2 (the fixed split); SiLU: arXiv:2002.05202, §2. We differ: a part is not summed with the
            others here but by the kernel that follows, which reads them anyway.
Tile map:   program (j, p) computes the columns of tile j, all rows, from part p; gated, the gate and the up of as many columns.
Tiles come through tensor descriptors: one instruction each, no registers for addresses, and zeros beyond the edges.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from services.generator.kernels.arguments import (
    check_at_most,
    check_floats,
    check_fp32_or_like,
    check_last_axis,
    check_rows_aligned,
    check_shape,
)
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs

MAX_ROWS = 64
"""Rows up to which this is faster than the library's product, and its tiles fit into shared memory. H200, 2026-11-30."""

MAX_GATED_ROWS = 128
"""Likewise, with the activation. H200, 2026-11-30."""

VECTOR = 8
"""Numbers of 16 bits in the 16 bytes at whose multiples rows begin."""

MAX_PARTS = 4
"""Each is written and read once more, in fp32."""


def num_parts(num_rows: int, num_columns: int, width: int, most: int = MAX_PARTS) -> int:
    """Parts of a product, at most so many, such that its programs fill the GPU; 0 where the library is faster.

    Args:
        num_columns: N.
        width: K.
    """
    block_n, block_k, *_ = _blocks(num_rows, num_columns)
    num_tiles = -(-num_columns // block_n)
    parts = max(1, min(most, WAVE // num_tiles, width // (2 * block_k)))
    return parts if 0 < num_rows <= MAX_ROWS and width % VECTOR == 0 and _is_enough(parts * num_tiles) else 0


def can_gate(num_rows: int, num_columns: int, width: int) -> bool:
    """Whether a product with the activation, from K to F columns, is faster than the library's."""
    num_tiles = -(-num_columns // _gated_blocks(num_rows, num_columns)[0])
    return 0 < num_rows <= MAX_GATED_ROWS and width % VECTOR == 0 and _is_enough(num_tiles)


def skinny_linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """x Wᵀ + b in parts.

    Args:
        out: [parts, T, N] contiguous; fp32, or in the dtype of `x`. Mutated.
        x: [T, K] fp16, bf16 or fp32, T up to MAX_ROWS.
        weight: [N, K].
        bias: [N], or None.
            All but `out` of one dtype, and contiguous on the last axis; rows of `x` and `weight` begin at multiples of 16 bytes.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_shape("out", out, None, len(x), len(weight))
    check_at_most("rows of x", len(x), MAX_ROWS)
    _launch(out, x, weight, bias, is_gated=False)


def skinny_silu_mul(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """silu(gate) · up of the first projection of a gated MLP.

    Args:
        out: [T, F] contiguous, in the dtype of `x`. Mutated.
        x: [T, K], T up to MAX_GATED_ROWS, weight: [2 F, K], bias: [2 F] or None, gate and up one below the other; likewise.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_shape("out", out, len(x), len(weight) // 2)
    check_at_most("rows of x", len(x), MAX_GATED_ROWS)
    _launch(out[None], x, weight, bias, is_gated=True)


def _launch(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, *, is_gated: bool) -> None:
    check_floats(x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    check_fp32_or_like(x, out=out)
    check_last_axis(x=x, weight=weight)
    check_rows_aligned(x=x, weight=weight)
    check_shape("x", x, None, weight.shape[1])
    parts, num_rows, num_columns = out.shape
    if num_rows == 0:
        return  # of no rows there are no tiles
    check_shape("weight", weight, num_columns * (2 if is_gated else 1), None)
    if bias is not None:
        check_shape("bias", bias, len(weight))
    block_n, block_k, num_warps, num_stages = (_gated_blocks if is_gated else _blocks)(num_rows, num_columns)
    block_k = block_k * 2 // x.itemsize  # as many bytes, whatever the dtype
    block_m = max(16, triton.next_power_of_2(num_rows))
    part = triton.cdiv(triton.cdiv(x.shape[1], parts), block_k) * block_k
    _skinny_linear_kernel[(triton.cdiv(num_columns, block_n), parts)](
        out, _tiles(x, block_m, block_k), _tiles(weight, block_n, block_k), x if bias is None else bias,
        num_rows, num_columns, part, out.stride(0), out.stride(1),
        IS_GATED=is_gated, HAS_BIAS=bias is not None, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        num_warps=num_warps, num_stages=num_stages, **overlap_options(x),
    )  # fmt: skip


def _tiles(matrix: Tensor, *block: int) -> TensorDescriptor:
    return TensorDescriptor(matrix, [*matrix.shape], [*matrix.stride()], [*block])


def _is_enough(num_programs: int) -> bool:
    return _share(num_programs) >= (ENOUGH if num_programs <= WAVE else FULL)


def _share(num_programs: int) -> float:
    """Of the places of all waves, those that have a program."""
    return num_programs / (WAVE * -(-num_programs // WAVE))


def _blocks(num_rows: int, num_columns: int) -> tuple[int, int, int, int]:
    blocks = next(blocks for limit, blocks in BLOCKS if num_rows <= limit)
    num_tiles = -(-num_columns // blocks[0])
    if num_tiles > WAVE:
        return WIDE_BLOCKS if num_rows > MANY_TILES_ROWS else blocks
    is_full = _share(WAVE // num_tiles * num_tiles) >= FULL
    return WIDE_BLOCKS if num_rows > FEW_TILES_ROWS and not is_full else blocks


def _gated_blocks(num_rows: int, num_columns: int) -> tuple[int, int, int, int]:
    choices = next(choices for limit, choices in GATED_BLOCKS if num_rows <= limit)
    return next((blocks for blocks in choices if _is_enough(-(-num_columns // blocks[0]))), choices[-1])


@triton.jit(do_not_specialize=["num_rows", "stride_outp"])
def _skinny_linear_kernel(
    out_ptr, x_desc, weight_desc, bias_ptr, num_rows, num_columns, part, stride_outp, stride_outt,
    IS_GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    let_next_begin(OVERLAPS)
    # --- which tile is mine ---
    first_n = tl.program_id(0) * BLOCK_N
    first_k = tl.program_id(1) * part
    offs_m = tl.arange(0, BLOCK_M)
    columns = first_n + tl.arange(0, BLOCK_N)
    mask_n = columns < num_columns
    wait_for_inputs(OVERLAPS)
    # --- compute (fp32) ---
    # The long side of the product is the weight's, which is why this is (W xᵀ)ᵀ.
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = acc
    for k in range(first_k, first_k + part, BLOCK_K):
        weight = weight_desc.load([first_n, k])
        if IS_GATED:
            up_weight = weight_desc.load([num_columns + first_n, k])
        x = x_desc.load([0, k]).T
        acc = tl.dot(weight, x, acc, input_precision="ieee")
        if IS_GATED:
            up = tl.dot(up_weight, x, up, input_precision="ieee")
    if HAS_BIAS:
        bias = tl.load(bias_ptr + columns, mask=mask_n, other=0.0).to(tl.float32)
        acc += tl.where(tl.program_id(1) == 0, bias, 0.0)[:, None]
    if IS_GATED:
        if HAS_BIAS:
            up += tl.load(bias_ptr + num_columns + columns, mask=mask_n, other=0.0).to(tl.float32)[:, None]
        acc = acc / (1.0 + tl.exp(-acc)) * up
    # --- store ---
    out_part_ptr = out_ptr + tl.program_id(1).to(tl.int64) * stride_outp
    out_tile_ptr = out_part_ptr + offs_m[None, :] * stride_outt + columns[:, None]
    tl.store(out_tile_ptr, acc.to(out_ptr.dtype.element_ty), mask=mask_n[:, None] & (offs_m < num_rows)[None, :])


WAVE = 132
"""Programs that run at a time: one for each multiprocessor of an H200, whose shared memory a program's tiles fill."""

FULL, ENOUGH = 0.75, 0.5
"""Share of the places of all waves that programs must take; of a single wave half is enough. H200, 2026-11-30."""

BLOCKS = ((16, (64, 128, 4, 6)), (1 << 30, (64, 128, 4, 5)))
"""(up to so many rows, (BLOCK_N, BLOCK_K in numbers of 16 bits, warps, stages)). H200, 2026-11-30."""

WIDE_BLOCKS = (128, 64, 8, 5)
MANY_TILES_ROWS, FEW_TILES_ROWS = 16, 32
"""Beyond so many rows WIDE_BLOCKS: where tiles of BLOCKS are too many for a wave, where parts do not
fill one. H200, 2026-11-30."""

GATED_BLOCKS: tuple[tuple[int, tuple[tuple[int, int, int, int], ...]], ...] = (
    (32, ((64, 128, 4, 4),)),
    (1 << 30, ((128, 64, 8, 4), (64, 64, 4, 5))),
)
"""Likewise, of the product with the activation: the first whose tiles are enough. H200, 2026-11-30."""
