"""What a layer does besides attention, and a step besides its layers, in plain torch: the backend of a CPU.

Called by the runner: layers reach it through `StepOps`. Holds nothing.
"""

from torch import Tensor
from torch.nn import functional

from services.generator.kernels.lora_lookup import lora_lookup
from services.generator.kernels.lora_segments import single_rows
from services.generator.kernels.reference.argmax import argmax
from services.generator.kernels.reference.lora import lora_expand, lora_shrink, slot_groups
from services.generator.kernels.reference.sample import sample
from services.generator.kernels.reference.step_indices import step_indices
from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.forward_batch import AdapterRows
from shared.modeling.decoder import Linear, Norm, linear, rms_norm, silu_and_mul


class ReferenceKernels:
    """See `LayerKernels`."""

    def project(self, projection: Linear, x: Tensor, group: AdapterGroup | None, rows: AdapterRows | None) -> Tensor:
        """Base projection of every row at once, and each row's adapter."""
        y = linear(projection, x)
        if group is not None and rows is not None:
            h = group.intermediate(len(x))
            lora_shrink(h, x, group.a, group.ranks, rows.slot_groups)
            lora_expand(y, h, group.b, group.ranks, group.scales, rows.slot_groups, group.slice_sizes)
        return y

    def project_norm(
        self,
        projection: Linear,
        x: Tensor,
        residual: Tensor,
        norm: Norm,
        group: AdapterGroup | None,
        rows: AdapterRows | None,
    ) -> tuple[Tensor, Tensor]:
        """The same, its sum with the residual, and the norm of that."""
        total = residual + self.project(projection, x, group, rows)
        return total, rms_norm(total, *norm)

    def gate(self, projection: Linear, x: Tensor, group: AdapterGroup | None, rows: AdapterRows | None) -> Tensor:
        """The same, and the activation of the MLP."""
        return silu_and_mul(self.project(projection, x, group, rows))

    def embed(
        self, embedding: Tensor, token_ids: Tensor, group: AdapterGroup | None, rows: AdapterRows | None
    ) -> Tensor:
        """The base model's rows, and each row's adapter."""
        y = functional.embedding(token_ids, embedding)
        if group is not None and rows is not None:
            h = group.intermediate(len(y))
            lora_lookup(h, token_ids, rows.segments.row_slots, group.a, group.ranks)
            lora_expand(y, h, group.b, group.ranks, group.scales, rows.slot_groups, group.slice_sizes)
        return y

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Of each row."""
        return rms_norm(x, *norm)

    def rows_by_adapter(self, row_slots: Tensor) -> AdapterRows:
        """The rows by slot."""
        return AdapterRows(single_rows(row_slots), 1, 0, slot_groups(row_slots))

    def step_indices(
        self,
        given_ids: Tensor,
        positions: Tensor,
        token_rows: Tensor,
        tables: tuple[Tensor, Tensor],
        *,
        block_size: int,
        marks: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        """Ids and slots of the tokens."""
        on_device, padding = marks
        return step_indices(
            given_ids, positions, token_rows, *tables, block_size=block_size, on_device=on_device, padding=padding
        )

    def argmax(self, logits: Tensor) -> Tensor:
        """Greedy choice."""
        return argmax(logits)

    def sample(
        self, logits: Tensor, temperature: Tensor, filters: tuple[Tensor, Tensor, Tensor] | None, uniforms: Tensor
    ) -> Tensor:
        """Draws."""
        return sample(logits, temperature, filters, uniforms)
