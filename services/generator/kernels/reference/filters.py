"""Which tokens a row may draw: the likeliest ones, by their number, by a share of the likeliest and by the mass that they reach.

Called by the oracle `sample`. Sorting a whole vocabulary takes longer than all else in a draw; where the host may look at values
without waiting for a device, the likeliest tokens are sorted alone and it is seen whether they are enough. Both ways give the
same bits.
"""

import torch
from torch import Tensor

LIKELY = 1024
"""Tokens that are looked at first."""


def filter_top(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Zero the unlikely tokens: all but the `top_k` likeliest, then those below `min_p` times the likeliest, then all but the
    smallest set that reaches `top_p` of what is left.

    Ties go to the lowest id. The likeliest token always stays.

    Args:
        probs: [N, V] fp32.
        top_k: [N] int64; 0 keeps all.
        top_p: [N] fp32.
        min_p: [N] fp32.
    Returns:
        [N, V], not normalised.
    """
    is_free = (top_k == 0) & (top_p >= 1) & (min_p <= 0)
    least = min_p[:, None] * probs.amax(dim=-1, keepdim=True)
    mass = torch.where(probs >= least, probs, 0).sum(dim=-1, keepdim=True, dtype=torch.float64)
    limits = top_k[:, None], top_p[:, None].double(), least, mass
    if probs.device.type == "cpu" and probs.shape[-1] > LIKELY:
        ordered, ids = _likely(probs)
        kept = _kept(ordered, *limits)
        if bool((is_free | _is_enough(kept, ordered, top_k)).all()):
            return _in_place(probs, ids, kept, is_free)
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    return _in_place(probs, ids, _kept(ordered, *limits), is_free)


def _likely(probs: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest in order, [N, LIKELY], and their ids; of those that tie with the last one some may be missing."""
    ids = probs.topk(LIKELY, dim=-1, sorted=False).indices.sort(dim=-1).values
    ordered, order = probs.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return ordered, ids.gather(-1, order)


def _kept(ordered: Tensor, top_k: Tensor, top_p: Tensor, least: Tensor, mass: Tensor) -> Tensor:
    """`ordered` [N, K], the others zeroed; `mass` [N, 1] fp64 of all that are not below `least`, whatever `top_k`."""
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    in_k = torch.where(((ranks < top_k) | (top_k == 0)) & (ordered >= least), ordered, 0)
    reached = in_k.cumsum(dim=-1, dtype=torch.float64)
    total = torch.where(top_k == 0, mass, reached[:, -1:])
    return torch.where((reached - in_k < top_p * total) | (ranks == 0), in_k, 0)


def _is_enough(kept: Tensor, ordered: Tensor, top_k: Tensor) -> Tensor:
    """[N] whether a row would keep no other if it saw more: all that it keeps is likelier than the last one that it sees."""
    smallest = torch.where(kept > 0, kept, torch.inf).amin(dim=-1)
    return (smallest > ordered[:, -1]) & (top_k <= LIKELY)


def _in_place(probs: Tensor, ids: Tensor, kept: Tensor, is_free: Tensor) -> Tensor:
    """What is kept, where it was in `probs`; rows that nothing filters as they were."""
    return torch.where(is_free[:, None], probs, torch.zeros_like(probs).scatter_(-1, ids, kept))
