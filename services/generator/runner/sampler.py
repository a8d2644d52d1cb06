"""Logits to token ids, on the device, for all rows at once; per-row parameters are tensors.

Called by the ModelRunner after the forward pass. A draw depends on (seed, position) only, never on what else is in the batch.
"""

import torch
from torch import Tensor

from services.generator.runner.random import uniform


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row, ties to the lowest id: [N, V] to [N] int64."""
    best = logits.amax(dim=-1, keepdim=True)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(logits == best, ids, logits.shape[-1]).amin(dim=-1)


def filter_top(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the `top_k` likeliest tokens, then all but the smallest set that reaches `top_p` of what is left.

    Ties go to the lowest id. The likeliest token always stays.

    Args:
        probs: [N, V] fp32.
        top_k: [N] int64; 0 keeps all.
        top_p: [N] fp32.
    Returns:
        [N, V], not normalised.
    """
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probs.shape[-1], device=probs.device)
    is_in_k = (ranks < top_k[:, None]) | (top_k[:, None] == 0)
    ordered = torch.where(is_in_k, ordered, 0)
    before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    is_in_p = before < top_p[:, None].double() * ordered.sum(dim=-1, keepdim=True, dtype=torch.float64)
    kept = torch.where(is_in_p | (ranks == 0), ordered, 0)
    return torch.zeros_like(probs).scatter_(-1, ids, kept)


def draw(probs: Tensor, seed: Tensor, position: Tensor) -> Tensor:
    """One token per row by inverting the cumulative distribution in order of ids.

    Args:
        probs: [N, V], not necessarily normalised.
        seed: [N] int64.
        position: [N] int64, of the token that is drawn.
    Returns:
        [N] int64.
    """
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    target = uniform(seed, position)[:, None] * cumulative[:, -1:]
    drawn = (cumulative <= target).sum(dim=-1)
    # Rounding may carry the target to the very end: the last token with any probability is meant then.
    ids = torch.arange(probs.shape[-1], device=probs.device)
    last = torch.where(probs > 0, ids, 0).amax(dim=-1)
    return torch.minimum(drawn, last)


def sample(
    logits: Tensor, temperature: Tensor, filters: tuple[Tensor, Tensor] | None, seed: Tensor, position: Tensor
) -> Tensor:
    """Tokens by temperature: rows at 0 take the likeliest, the others draw.

    Args:
        logits: [N, V] fp32.
        temperature: [N] fp32.
        filters: (top_k [N], top_p [N]), or None where no row uses them.
    Returns:
        [N] int64.
    """
    is_greedy = temperature == 0
    probs = torch.softmax(logits / torch.where(is_greedy, 1.0, temperature)[:, None], dim=-1)
    if filters is not None:
        probs = filter_top(probs, *filters)
    return torch.where(is_greedy, greedy(logits), draw(probs, seed, position))
