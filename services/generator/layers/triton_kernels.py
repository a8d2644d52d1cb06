"""What a layer does besides products and attention, with the Triton kernels.

Called by the runner's `StepOps`, also while a CUDA graph is captured.
"""

import torch
from torch import Tensor

from services.generator.kernels.argmax import argmax
from services.generator.kernels.lora_expand import lora_expand
from services.generator.kernels.lora_shrink import lora_shrink, num_parts
from services.generator.kernels.rms_norm import rms_norm
from services.generator.kernels.silu_mul import silu_mul
from services.generator.kernels.step_indices import step_indices
from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.forward_batch import ForwardBatch
from shared.modeling.decoder import Linear, linear


class TritonKernels:
    """See `LayerKernels`."""

    def project(self, projection: Linear, x: Tensor, group: AdapterGroup | None, batch: ForwardBatch) -> Tensor:
        """Base projection of every row at once, and each row's adapter."""
        segments = batch.segments
        if group is None or segments is None:
            return linear(projection, x).contiguous()
        num_slices, max_rank = group.a.shape[1:3]
        parts = num_parts(len(x), x.shape[1], batch.lora_chunk)
        h = group.scratch[: parts * len(x) * num_slices * max_rank].view(parts, len(x), num_slices, max_rank)
        rows = (segments.row_slots, segments.token_order, segments.chunk_slots, segments.chunk_starts)
        lens, chunk_size = segments.chunk_lens, batch.lora_chunk
        lora_shrink(h, x, group.a, group.ranks, group.scales, *rows, lens, chunk_size=chunk_size)
        y = linear(projection, x).contiguous()
        lora_expand(y, h, group.b, group.ranks, *rows, lens, chunk_size=chunk_size, slice_sizes=group.slice_sizes)
        return y

    def add_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Residual sum and its norm, both in place."""
        rms_norm(x, x, weight, eps, residual)
        return residual, x

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """Activation of the MLP."""
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        silu_mul(out, gate_up)
        return out

    def step_indices(
        self,
        given_ids: Tensor,
        positions: Tensor,
        token_rows: Tensor,
        *tables: Tensor,
        block_size: int,
        on_device: int,
        padding: int,
    ) -> tuple[Tensor, Tensor]:
        """Ids and slots of the tokens."""
        token_ids, slots = given_ids.new_empty(2, len(given_ids), dtype=torch.int64)
        sizes = {"block_size": block_size, "on_device": on_device, "padding": padding}
        step_indices(token_ids, slots, given_ids, positions, token_rows, *tables, **sizes)
        return token_ids, slots

    def argmax(self, logits: Tensor) -> Tensor:
        """Greedy choice."""
        ids = logits.new_empty(len(logits), dtype=torch.int64)
        argmax(ids, logits.contiguous())
        return ids
