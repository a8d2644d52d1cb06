"""The loop that teaches a cross-encoder: groups of one right passage and wrong ones, for so many steps or so much time.

Called by `train`. Softmax cross-entropy over the group, as in ListNet (Cao et al., Learning to Rank: From Pairwise Approach to
Listwise Approach, 2007), with the right passage as the target, mixed with the embedder's own opinion of the group: its cosines
know more English than the corpus teaches (distillation; Hinton et al., arXiv 1503.02531, §2).
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from examples.reranker.models import CrossEncoder
from examples.reranker.token_table import TokenTable

_WARM_UP = 0.05
_COSINE_SHARPNESS = 20.0


@dataclass(frozen=True)
class Plan:
    """What to do.

    Args:
        max_minutes: the schedule runs out by then, however many of `num_steps` are done.
        num_negatives: wrong passages of a group.
        cosine_share: of the target, what the embedder thinks instead of what is known.
    """

    num_steps: int
    max_minutes: float
    num_groups: int
    num_negatives: int
    learning_rate: float
    cosine_share: float
    seed: int


@dataclass(frozen=True)
class Lessons:
    """Queries and passages by place, a query's own passage at the same place.

    Args:
        cosines: of each query with its passage and its wrong ones, [pairs, 1 + pool].
        negatives: [pairs, pool] places.
    """

    queries: TokenTable
    passages: TokenTable
    cosines: Tensor
    negatives: Tensor


def learn(model: CrossEncoder, lessons: Lessons, plan: Plan, report: Callable[[int, float], None]) -> int:
    """Teach `model` and return the number of steps done; `report` gets the step and the mean loss since it was last called.

    With enough time the same plan and the same device give the same delta as far as the device's sums are repeatable.
    """
    optimizer = torch.optim.AdamW(model.parameters, lr=plan.learning_rate, weight_decay=0.01)
    batches = _batches(lessons, plan)
    started_at = time.monotonic()
    losses: list[Tensor] = []
    for step in range(1, plan.num_steps + 1):
        done = max(step / plan.num_steps, (time.monotonic() - started_at) / 60 / plan.max_minutes)
        if done > 1:
            return step - 1
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * _share_of_rate(done)
        model.model.train()
        loss = _loss(model, lessons, *next(batches), plan.cosine_share)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters, 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if step % 50 == 0:
            report(step, float(torch.stack(losses[-50:]).mean()))
    return plan.num_steps


def _share_of_rate(done: float) -> float:
    """Up in a straight line, then down along a cosine."""
    if done < _WARM_UP:
        return done / _WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP)))


def _batches(lessons: Lessons, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """Places [groups] and columns of their negatives [groups, num_negatives], without end.

    Groups of like length go together: within a stretch of 16 batches of shuffled pairs they are put in order.
    """
    chance = torch.Generator().manual_seed(plan.seed)
    lengths = lessons.queries.lengths + lessons.passages.lengths
    num_pairs, pool = lessons.negatives.shape
    while True:
        for stretch in torch.randperm(num_pairs, generator=chance).split(16 * plan.num_groups):
            batches = stretch[lengths[stretch].argsort()].split(plan.num_groups)
            for index in torch.randperm(len(batches), generator=chance).tolist():
                columns = torch.rand(len(batches[index]), pool, generator=chance).argsort(dim=1)
                yield batches[index], columns[:, : plan.num_negatives]


def _loss(model: CrossEncoder, lessons: Lessons, places: Tensor, columns: Tensor, cosine_share: float) -> Tensor:
    wrong = lessons.negatives[places].gather(1, columns)
    groups = torch.cat([places[:, None], wrong], dim=1)
    asking = places.repeat_interleave(groups.shape[1])
    logits = model.logits(lessons.queries.rows(asking), lessons.passages.rows(groups.flatten())).view(groups.shape)
    opinions = lessons.cosines[places].gather(1, torch.cat([torch.zeros_like(columns[:, :1]), columns + 1], dim=1))
    target = cosine_share * (opinions * _COSINE_SHARPNESS).softmax(dim=1)
    target[:, 0] += 1 - cosine_share
    return functional.cross_entropy(logits, target.to(model.device))
