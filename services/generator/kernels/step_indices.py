"""The indices of a step's tokens, made from what the scheduler planned and from what only the device knows.

Semantics:  token_ids[t] = last_token[row_t] where the plan says ON_DEVICE, 0 where it says PADDING, else what it says;
            slot_mapping[t] = block_table[row_t, position_t / size] · size + position_t mod size, -1 of padding.
Source:     slots of a paged cache: arXiv:2309.06180, §4.1.
Tile map:   program i takes BLOCK_T tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.generator.kernels.arguments import check_contiguous, check_dtype, check_shape


def step_indices(
    token_ids: Tensor,
    slot_mapping: Tensor,
    given_ids: Tensor,
    positions: Tensor,
    token_rows: Tensor,
    block_table: Tensor,
    last_token: Tensor,
    *,
    block_size: int,
    on_device: int,
    padding: int,
) -> None:
    """Write both outputs.

    Args:
        token_ids: [T] int64. Mutated.
        slot_mapping: [T] int64. Mutated.
        given_ids, positions, token_rows: [T] int32; ids, `on_device` or `padding`.
        block_table: [rows, blocks] int32, contiguous.
        last_token: [rows] int64.
    Raises:
        KernelArgumentError: shapes, dtypes or strides do not agree.
    """
    num_tokens = len(given_ids)
    for name, tensor in (("token_ids", token_ids), ("slot_mapping", slot_mapping)):
        check_shape(name, tensor, num_tokens)
    check_shape("positions", positions, num_tokens)
    check_shape("token_rows", token_rows, num_tokens)
    check_shape("block_table", block_table, None, None)
    check_shape("last_token", last_token, len(block_table))
    check_dtype(torch.int64, token_ids=token_ids, slot_mapping=slot_mapping, last_token=last_token)
    check_dtype(torch.int32, given=given_ids, positions=positions, token_rows=token_rows, block_table=block_table)
    check_contiguous(given=given_ids, positions=positions, token_rows=token_rows, block_table=block_table)
    _step_indices_kernel[(triton.cdiv(num_tokens, BLOCK_T),)](
        token_ids, slot_mapping, given_ids, positions, token_rows, block_table, last_token, num_tokens,
        block_table.stride(0), BLOCK_SIZE=block_size, ON_DEVICE=on_device, PADDING=padding, BLOCK_T=BLOCK_T, num_warps=1,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["num_tokens"],
    do_not_specialize_on_alignment=["slot_mapping_ptr", "given_ptr", "positions_ptr", "rows_ptr"],
)
def _step_indices_kernel(
    token_ids_ptr, slot_mapping_ptr, given_ptr, positions_ptr, rows_ptr, table_ptr, last_token_ptr, num_tokens,
    stride_tables,
    BLOCK_SIZE: tl.constexpr, ON_DEVICE: tl.constexpr, PADDING: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    # --- which tile is mine ---
    offs_t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    mask_t = offs_t < num_tokens
    # --- load ---
    given = tl.load(given_ptr + offs_t, mask=mask_t, other=PADDING)
    positions = tl.load(positions_ptr + offs_t, mask=mask_t, other=0)
    rows = tl.load(rows_ptr + offs_t, mask=mask_t, other=0).to(tl.int64)
    blocks = tl.load(table_ptr + rows * stride_tables + positions // BLOCK_SIZE, mask=mask_t, other=0)
    last = tl.load(last_token_ptr + rows, mask=mask_t & (given == ON_DEVICE), other=0)
    # --- compute ---
    token_ids = tl.where(given == ON_DEVICE, last, tl.maximum(given, 0).to(tl.int64))
    slots = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
    # --- store ---
    tl.store(token_ids_ptr + offs_t, token_ids, mask=mask_t)
    tl.store(slot_mapping_ptr + offs_t, tl.where(given == PADDING, -1, slots), mask=mask_t)


BLOCK_T = 32
"""Two loads that depend on one another are all there is to wait for: many small programs. H200, 2026-11-30."""
