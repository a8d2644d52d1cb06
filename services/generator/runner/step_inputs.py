"""Turns a StepPlan into a ForwardBatch with vector operations only: no loop over rows, tokens or layers.

Called by the ModelRunner once per step. One copy takes everything to the device; what is made from it there depends on sizes only,
so that it can be part of a CUDA graph.
"""

from torch import Tensor

from services.generator.core.plan import NUM_AXES, TOKEN_ON_DEVICE
from services.generator.layers.backends import LayerKernels
from services.generator.layers.forward_batch import AdapterRows, ForwardBatch, PagedRows
from services.generator.runner.row_tables import RowTables
from services.generator.runner.step_layout import PADDING_TOKEN, StepLayout


def make_forward_batch(
    packed: Tensor, layout: StepLayout, tables: RowTables, kernels: LayerKernels, block_size: int
) -> ForwardBatch:
    """The step's tensors, without those for the reference backends; `tables` must have the plan applied.

    Args:
        packed: int32, what `layout.pack` made, on the device.
    """
    arrays, shape = layout.split(packed), layout.shape
    token_ids, slot_mapping = kernels.step_indices(
        arrays.token_ids,
        arrays.positions,
        arrays.token_rows,
        (tables.block_table, tables.last_token),
        block_size=block_size,
        marks=(TOKEN_ON_DEVICE, PADDING_TOKEN),
    )
    return ForwardBatch(
        token_ids=token_ids,
        positions=arrays.positions,
        rope_positions=arrays.rope_positions.view(NUM_AXES, -1) if layout.has_axes else None,
        slot_mapping=slot_mapping,
        # Decode rows have one token each, and all of them sample it: nothing has to be picked out.
        logits_index=None if shape.num_decodes == shape.num_tokens == shape.num_sampled else arrays.logits_index,
        paged=PagedRows(
            num_decodes=shape.num_decodes,
            block_table=tables.block_table.index_select(0, arrays.rows),
            context_lens=arrays.context_lens,
            cu_query_lens=arrays.cu_query_lens,
            tiles=arrays.tiles.view(2, -1),
        ),
        adapters=_adapter_rows(arrays.lora, layout),
        groups=[],
    )


def _adapter_rows(packed: Tensor, layout: StepLayout) -> AdapterRows | None:
    segments, lora = layout.segments, layout.shape.lora
    if segments is None or lora is None:
        return None
    return AdapterRows(segments.split(packed), lora.chunk_size, lora.num_joined, [])
