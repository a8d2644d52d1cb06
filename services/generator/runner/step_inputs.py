"""Turns a StepPlan into a ForwardBatch with vector operations only: no loop over rows, tokens or layers.

Called by the ModelRunner once per step. One copy takes everything to the device; what is made from it there depends on sizes only,
so that it can be part of a CUDA graph.
"""

import torch
from torch import Tensor

from services.generator.core.plan import TOKEN_ON_DEVICE
from services.generator.layers.forward_batch import AdapterRows, ForwardBatch, PagedRows
from services.generator.runner.row_tables import RowTables
from services.generator.runner.step_layout import PADDING_TOKEN, StepLayout


def make_forward_batch(packed: Tensor, layout: StepLayout, tables: RowTables, block_size: int) -> ForwardBatch:
    """The step's tensors, without those for the reference backends; `tables` must have the plan applied.

    Args:
        packed: int32, what `layout.pack` made, on the device.
    """
    arrays = layout.split(packed)
    positions, token_rows = arrays.positions.long(), arrays.token_rows.long()
    rows, logits_index = arrays.rows.long(), arrays.logits_index.long()
    given = arrays.token_ids.long()
    blocks = tables.block_table[token_rows, positions // block_size].long()
    slots = blocks * block_size + positions % block_size
    return ForwardBatch(
        token_ids=torch.where(given == TOKEN_ON_DEVICE, tables.last_token[token_rows], given).clamp(min=0),
        positions=positions,
        slot_mapping=torch.where(given == PADDING_TOKEN, -1, slots),
        logits_index=logits_index,
        sampled_rows=token_rows[logits_index],
        sampled_positions=positions[logits_index] + 1,
        paged=PagedRows(
            num_decodes=layout.shape.num_decodes,
            block_table=tables.block_table[rows],
            context_lens=arrays.context_lens,
            cu_query_lens=arrays.cu_query_lens,
            tiles=arrays.tiles.view(2, -1),
        ),
        adapters=_adapter_rows(arrays.lora, layout),
        groups=[],
    )


def _adapter_rows(packed: Tensor, layout: StepLayout) -> AdapterRows | None:
    segments = layout.segments
    return None if segments is None else AdapterRows(segments.split(packed), segments.chunk_size, [])
