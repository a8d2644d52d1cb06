"""The indices of a step's tokens in plain torch: the oracle of the Triton kernel `step_indices`, see there."""

import torch
from torch import Tensor


def step_indices(
    given_ids: Tensor,
    positions: Tensor,
    token_rows: Tensor,
    block_table: Tensor,
    last_token: Tensor,
    *,
    block_size: int,
    on_device: int,
    padding: int,
) -> tuple[Tensor, Tensor]:
    """`token_ids` and `slot_mapping`, both [T] int64."""
    rows, given, places = token_rows.long(), given_ids.long(), positions.long()
    slots = block_table[rows, places // block_size].long() * block_size + places % block_size
    token_ids = torch.where(given == on_device, last_token[rows], given).clamp(min=0)
    return token_ids, torch.where(given == padding, -1, slots)
