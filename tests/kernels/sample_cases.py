"""What may be drawn, in plain Python, and the uniform number that draws it."""

import math


def brute_force_filter(probs, top_k, top_p, min_p):
    """The ids that stay, likeliest first, ties to the lowest id; `probs` need not add up to 1."""
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    if top_k:
        order = order[:top_k]
    order = [i for i in order if probs[i] >= min_p * probs[order[0]]]
    total, kept, reached = sum(probs[i] for i in order), [], 0.0
    for i in order:
        if kept and reached >= top_p * total:
            break
        kept.append(i)
        reached += probs[i]
    return kept


def weights(logits, temperature):
    """Of every token in proportion to the likeliest; nothing for one that is no number."""
    highest = max(x for x in logits if x == x)
    return [math.exp((x - highest) / temperature) if x == x else 0.0 for x in logits]


def middles(probs, kept):
    """By id, the uniform number in the middle of those that draw it; without ids that less than one in a million does."""
    total, below, found = math.fsum(probs[i] for i in kept), 0.0, {}
    for i in sorted(kept):
        if probs[i] > 1e-6 * total:
            found[i] = (below + probs[i] / 2) / total
        below += probs[i]
    return found
