"""Rotary position embedding: the table of cosines and sines, and its application to query and key heads.

Source: RoFormer, arXiv:2104.09864, §3.4.2, in the half-split layout of Hugging Face's Llama; `rope_scaling` stretches it.
Used by the decoder's callers; the table is made once per model, its rows are gathered once per step.
"""

import torch
from torch import Tensor
from torch.nn import functional

from shared.modeling.rope_config import RopeConfig


def rope_table(config: RopeConfig, num_positions: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosines and sines of all positions, times the scaling's factor on attention.

    Returns:
        [P, D] in `dtype`: the first D/2 columns are cosines, the rest sines; computed in fp32.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=device).float() / config.head_dim
    frequencies = config.scaling.inverse_frequencies(config.theta**exponents, config.theta)  # [D/2]
    angles = torch.arange(num_positions, device=device).float()[:, None] * frequencies  # [P, D/2]
    return (torch.cat([angles.cos(), angles.sin()], dim=-1) * config.scaling.attention_factor).to(dtype)


def sectioned_rows(table: Tensor, positions: Tensor, sections: tuple[int, int, int]) -> Tensor:
    """The rows of `table` for tokens that stand somewhere else on each of three axes: Qwen2-VL, arXiv:2409.12191, §2.1.

    Semantics: the first sections[0] pairs of a head turn by the token's position in time, the next sections[1] by its
    height, the rest by its width; where the three are the same these are the ordinary rows. Shapes alone decide what runs,
    so that a CUDA graph can hold it.

    Args:
        table: [P, D], see `rope_table`.
        positions: [3, T] integers below P, on the table's device.
        sections: pairs for time, height and width; their sum is D/2.
    Returns:
        [T, D].
    """
    by_axis = functional.embedding(positions, table)  # [3, T, D]
    cos, sin = (torch.split(half, list(sections), dim=-1) for half in by_axis.chunk(2, dim=-1))
    return torch.cat([part[axis] for parts in (cos, sin) for axis, part in enumerate(parts)], dim=-1)


def apply_rope(heads: Tensor, table_rows: Tensor) -> Tensor:
    """Rotate each head by its token's position.

    Semantics: (a, b) -> (a cos - b sin, b cos + a sin), with a and b the two halves of a head.

    Args:
        heads: [T, H, D].
        table_rows: [T, D], rows of `rope_table` at the tokens' positions.
    Returns:
        [T, H, D], a new tensor.
    """
    cos, sin = table_rows[:, None].chunk(2, dim=-1)  # [T, 1, D/2] each
    a, b = heads.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
