"""SiLU of the gate times the up projection.

Semantics:  out[t, f] = silu(gate_up[t, f]) · gate_up[t, F + f], silu(z) = z / (1 + exp(-z)); fp32, rounded once.
Source:     GLU Variants Improve Transformer, arXiv:2002.05202, §2.
Tile map:   program (t, j) computes columns [j*BLOCK_F, …) of row t.
"""

import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import check_floats, check_last_axis, check_shape
from services.generator.kernels.overlap import let_next_begin, overlap_options, wait_for_inputs


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """Activation of a gated MLP.

    Args:
        out: [T, F]. Mutated.
        gate_up: [T, 2 F] fp16, bf16 or fp32, gate and up side by side; both tensors contiguous on the last axis.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    check_floats(out=out, gate_up=gate_up)
    check_last_axis(out=out, gate_up=gate_up)
    check_shape("out", out, None, None)
    num_rows, width = out.shape
    check_shape("gate_up", gate_up, num_rows, 2 * width)
    _silu_mul_kernel[(num_rows, triton.cdiv(width, BLOCK_F))](
        out,
        gate_up,
        width,
        out.stride(0),
        gate_up.stride(0),
        BLOCK_F=BLOCK_F,
        num_warps=NUM_WARPS,
        **overlap_options(gate_up),
    )


@triton.jit
def _silu_mul_kernel(
    out_ptr, gate_up_ptr, width, stride_outt, stride_gate_upt, BLOCK_F: tl.constexpr, OVERLAPS: tl.constexpr
):
    let_next_begin(OVERLAPS)
    wait_for_inputs(OVERLAPS)
    # --- which tile is mine ---
    row = tl.program_id(0).to(tl.int64)
    offs_f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask_f = offs_f < width
    # --- load ---
    gate_ptr = gate_up_ptr + row * stride_gate_upt + offs_f
    gate = tl.load(gate_ptr, mask=mask_f, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + width, mask=mask_f, other=0.0).to(tl.float32)
    # --- compute (fp32) ---
    out = gate / (1.0 + tl.exp(-gate)) * up
    # --- store ---
    tl.store(out_ptr + row * stride_outt + offs_f, out.to(out_ptr.dtype.element_ty), mask=mask_f)


BLOCK_F, NUM_WARPS = 1024, 4
"""H200, 2026-11-30."""
