"""Draws by temperature in plain torch: the oracle of the Triton kernel `sample`."""

import torch
from torch import Tensor

from services.generator.kernels.reference.argmax import argmax
from services.generator.kernels.reference.filters import filter_top


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """One token per row by inverting the cumulative distribution in order of ids.

    Args:
        probs: [N, V], not necessarily normalised.
        uniforms: [N] fp64 in [0, 1).
    Returns:
        [N] int64.
    """
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    target = uniforms[:, None] * cumulative[:, -1:]
    drawn = (cumulative <= target).sum(dim=-1)
    # Rounding may carry the target to the very end: the last token with any probability is meant then.
    ids = torch.arange(probs.shape[-1], device=probs.device)
    last = torch.where(probs > 0, ids, 0).amax(dim=-1)
    return torch.minimum(drawn, last)


def sample(
    logits: Tensor, temperature: Tensor, filters: tuple[Tensor, Tensor, Tensor] | None, uniforms: Tensor
) -> Tensor:
    """Tokens by temperature: rows at 0 take the likeliest, the others draw.

    Args:
        logits: [N, V].
        temperature: [N] fp32.
        filters: (top_k [N], top_p [N], min_p [N]), or None where no row uses them.
        uniforms: [N] fp64 in [0, 1), what each row draws with.
    Returns:
        [N] int64.
    """
    logits = logits.float()
    is_greedy = temperature == 0
    probs = torch.softmax(logits / torch.where(is_greedy, 1.0, temperature)[:, None], dim=-1)
    if filters is not None:
        probs = filter_top(probs, *filters)
    return torch.where(is_greedy, argmax(logits), draw(probs, uniforms))
