"""What a layer does besides products and attention, in plain torch: the backend of a CPU.

Called by the runner's `StepOps`.
"""

from torch import Tensor

from services.generator.kernels.reference.argmax import argmax
from services.generator.kernels.reference.lora import lora_expand, lora_shrink
from services.generator.kernels.reference.step_indices import step_indices
from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.forward_batch import ForwardBatch
from shared.modeling.decoder import Linear, linear, rms_norm, silu_and_mul


class ReferenceKernels:
    """See `LayerKernels`."""

    def project(self, projection: Linear, x: Tensor, group: AdapterGroup | None, batch: ForwardBatch) -> Tensor:
        """Base projection of every row at once, and each row's adapter."""
        y = linear(projection, x)
        if group is not None and batch.slot_groups:
            num_slices, max_rank = group.a.shape[1:3]
            h = group.scratch[: len(x) * num_slices * max_rank].view(len(x), num_slices, max_rank)
            lora_shrink(h, x, group.a, group.ranks, group.scales, batch.slot_groups)
            lora_expand(y, h, group.b, group.ranks, batch.slot_groups, group.slice_sizes)
        return y

    def add_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Residual sum and its norm."""
        total = residual + x
        return total, rms_norm(total, weight, eps)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """Activation of the MLP."""
        return silu_and_mul(gate_up)

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
        sizes = {"block_size": block_size, "on_device": on_device, "padding": padding}
        return step_indices(given_ids, positions, token_rows, *tables, **sizes)

    def argmax(self, logits: Tensor) -> Tensor:
        """Greedy choice."""
        return argmax(logits)
