"""What a layer does besides attention, and a step besides its layers, with the Triton kernels.

Called by the runner, also while a CUDA graph is captured: layers reach it through `StepOps`. Holds nothing.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from services.generator.kernels import skinny_linear as skinny
from services.generator.kernels.argmax import argmax
from services.generator.kernels.lora_expand import lora_expand
from services.generator.kernels.lora_lookup import lora_lookup
from services.generator.kernels.lora_segments import single_rows
from services.generator.kernels.lora_shrink import lora_shrink, num_shrink_parts
from services.generator.kernels.lora_silu_mul import lora_silu_mul
from services.generator.kernels.rms_norm import rms_norm
from services.generator.kernels.sample import sample
from services.generator.kernels.silu_mul import silu_mul
from services.generator.kernels.step_indices import step_indices
from services.generator.layers.adapter_group import AdapterGroup
from services.generator.layers.forward_batch import AdapterRows
from shared.modeling.decoder import Linear, Norm, linear


class TritonKernels:
    """See `LayerKernels`."""

    def project(self, projection: Linear, x: Tensor, group: AdapterGroup | None, rows: AdapterRows | None) -> Tensor:
        """Base projection of every row at once, and each row's adapter."""
        if group is None or rows is None:
            return _product(projection, x)[0]
        y, h = _narrow_side(_product, projection, x, group, rows)
        _add_wide_side(y[0], h, group, rows)
        return y[0]

    def project_norm(
        self,
        projection: Linear,
        x: Tensor,
        residual: Tensor,
        norm: Norm,
        group: AdapterGroup | None,
        rows: AdapterRows | None,
    ) -> tuple[Tensor, Tensor]:
        """The same, its sum with the residual, which is changed, and the norm of that."""
        if group is None or rows is None:
            y = _product_in_parts(projection, x)
        else:
            y, h = _narrow_side(_product_in_parts, projection, x, group, rows)
            _add_wide_side(y[0], h, group, rows)
        out = torch.empty_like(residual)
        rms_norm(out, y, *norm, residual)
        return residual, out

    def gate(self, projection: Linear, x: Tensor, group: AdapterGroup | None, rows: AdapterRows | None) -> Tensor:
        """The same, and the activation of the MLP."""
        out = x.new_empty(len(x), len(projection.weight) // 2)
        if group is not None and rows is not None:
            y, h = _narrow_side(_product, projection, x, group, rows)
            adapters = (group.b, group.ranks, group.scales, *rows.segments.arrays)
            lora_silu_mul(out, y[0], h, *adapters, chunk_size=rows.chunk_size)
        elif x.dtype != torch.float32 and skinny.can_gate(len(x), out.shape[1], x.shape[1]):
            skinny.skinny_silu_mul(out, x, projection.weight, projection.bias)
        else:
            silu_mul(out, linear(projection, x).contiguous())
        return out

    def embed(
        self, embedding: Tensor, token_ids: Tensor, group: AdapterGroup | None, rows: AdapterRows | None
    ) -> Tensor:
        """The base model's rows, and each row's adapter."""
        y = functional.embedding(token_ids, embedding)
        if group is not None and rows is not None:
            h = group.intermediate(len(y))
            lora_lookup(h, token_ids, rows.segments.row_slots, group.a, group.ranks)
            _add_wide_side(y, h[None, :, None], group, rows)
        return y

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Of each row."""
        out = torch.empty_like(x)
        rms_norm(out, x, *norm)
        return out

    def rows_by_adapter(self, row_slots: Tensor) -> AdapterRows:
        """A program for each row: sorting them by adapter would need the host."""
        return AdapterRows(single_rows(row_slots), 1, 0, [])

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
        token_ids, slots = given_ids.new_empty(2, len(given_ids), dtype=torch.int64)
        step_indices(
            token_ids,
            slots,
            given_ids,
            positions,
            token_rows,
            *tables,
            block_size=block_size,
            on_device=on_device,
            padding=padding,
        )
        return token_ids, slots

    def argmax(self, logits: Tensor) -> Tensor:
        """Greedy choice."""
        ids = logits.new_empty(len(logits), dtype=torch.int64)
        argmax(ids, logits.contiguous())
        return ids

    def sample(
        self, logits: Tensor, temperature: Tensor, filters: tuple[Tensor, Tensor, Tensor] | None, uniforms: Tensor
    ) -> Tensor:
        """Draws."""
        ids = logits.new_empty(len(logits), dtype=torch.int64)
        sample(ids, logits.contiguous(), temperature, filters, uniforms)
        return ids


def _library_product(projection: Linear, x: Tensor) -> Tensor:
    """[1, T, out]."""
    return linear(projection, x).contiguous()[None]


def _product(projection: Linear, x: Tensor) -> Tensor:
    """The same, by a kernel of ours where that is no slower."""
    return _product_in_parts(projection, x, 1)


def _product_in_parts(projection: Linear, x: Tensor, most: int = skinny.MAX_PARTS) -> Tensor:
    """[parts, T, out], for kernels that sum parts; in fp32 where there are several."""
    num_columns, width = projection.weight.shape
    parts = 0 if x.dtype == torch.float32 else skinny.num_parts(len(x), num_columns, width, most)
    if parts == 0:
        return _library_product(projection, x)
    out = x.new_empty(parts, len(x), num_columns, dtype=torch.float32 if parts > 1 else x.dtype)
    skinny.skinny_linear(out, x, projection.weight, projection.bias)
    return out


def _narrow_side(
    product: Callable[[Linear, Tensor], Tensor],
    projection: Linear,
    x: Tensor,
    group: AdapterGroup,
    rows: AdapterRows,
) -> tuple[Tensor, Tensor]:
    """The base projection [parts, T, out] and the intermediates [parts, T, H, slices, R] that `check_delta` describes."""
    num_slices, max_rank = group.a.shape[1:3]
    joined = group.joined_with(rows.num_joined)
    if joined is not None:
        whole = product(joined, x)
        y, h = torch.split(whole, [group.b.shape[1], whole.shape[2] - group.b.shape[1]], dim=2)
        return y, h.view(len(h), len(x), rows.num_joined, num_slices, max_rank)
    parts = num_shrink_parts(len(x), x.shape[1], rows.chunk_size)
    h = group.intermediate(parts * len(x)).view(parts, len(x), num_slices, max_rank)
    lora_shrink(h, x, group.a, group.ranks, *rows.segments.arrays, chunk_size=rows.chunk_size)
    return product(projection, x), h[:, :, None]


def _add_wide_side(y: Tensor, h: Tensor, group: AdapterGroup, rows: AdapterRows) -> None:
    adapters = (group.b, group.ranks, group.scales, *rows.segments.arrays)
    lora_expand(y, h, *adapters, chunk_size=rows.chunk_size, slice_sizes=group.slice_sizes)
