"""The base projections with room for adapters below them: one matrix [out + slots * slices * R, in] each, so that one product gives
a projection and the rank-r side of the adapters of its first slots.

Used by `AdapterBank`, once, at start. Moves what the base's weights hold, layer by layer; no weight is in memory twice for longer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from services.generator.adapters.modules import GroupShape, GroupStack
from services.generator.core.specs import AdapterBankSpec
from shared.modeling.decoder import DecoderWeights, Linear


def join_layers(
    weights: DecoderWeights, stacks: Mapping[str, GroupStack], spec: AdapterBankSpec
) -> dict[str, list[Linear]]:
    """The matrices of each stack, layer by layer; for embedding and head, whose products are others, there is no base in them.

    Args:
        weights: its layers are replaced by such as are views of what this returns.
    """
    joined: dict[str, list[Linear]] = {name: [] for name in stacks}
    for name, stack in stacks.items():
        if not stack.is_in_layers:
            joined[name].append(_join(Linear(weights.embedding[:0, :0]), stack.shape, spec))
    in_layers = [name for name, stack in stacks.items() if stack.is_in_layers]
    for index, layer in enumerate(weights.layers):
        for name in in_layers:
            joined[name].append(_join(getattr(layer, name), stacks[name].shape, spec))
        views: dict[str, Any] = {name: _base_of(joined[name][-1], stacks[name].shape) for name in in_layers}
        weights.layers[index] = replace(layer, **views)
        del layer
        if weights.embedding.device.type == "cuda":
            torch.cuda.empty_cache()  # what the layer had does not fit what the next one needs
    return joined


def adapter_rows(joined: Linear, shape: GroupShape, spec: AdapterBankSpec) -> Tensor:
    """[slots, slices, R, in]: the A of all slots."""
    num_rows = spec.num_slots * len(shape.modules) * spec.max_rank
    return joined.weight[-num_rows:].view(spec.num_slots, len(shape.modules), spec.max_rank, shape.in_features)


def _join(base: Linear, shape: GroupShape, spec: AdapterBankSpec) -> Linear:
    num_base, num_rows = len(base.weight), spec.num_slots * len(shape.modules) * spec.max_rank
    # Zeros, not whatever was there: what lies beyond a slot's rank may enter a product, times zero.
    weight = base.weight.new_zeros(num_base + num_rows, shape.in_features)
    bias = None if base.bias is None else base.bias.new_zeros(len(weight))
    if num_base:
        weight[:num_base] = base.weight
    if bias is not None and base.bias is not None:
        bias[:num_base] = base.bias
    return Linear(weight, bias)


def _base_of(joined: Linear, shape: GroupShape) -> Linear:
    end = shape.out_features
    return Linear(joined.weight[:end], None if joined.bias is None else joined.bias[:end])
