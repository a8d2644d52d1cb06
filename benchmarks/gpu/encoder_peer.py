"""What the encoder benchmark compares with: `transformers` in padded batches, and how near ours is to it.

Mean pooling in fp32 over the states, vectors back on the host, as ours are counted.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import BertModel


def load_peer(folder: Path, device: str, dtype: torch.dtype) -> BertModel:
    """The encoder alone."""
    model: BertModel = BertModel.from_pretrained(folder, dtype=dtype, add_pooling_layer=False)
    return model.to(device).eval()


@torch.inference_mode()
def embed(model: BertModel, sequences: Sequence[list[int]], batch_size: int, *, is_sorted: bool) -> np.ndarray:
    """A vector for each sequence, in order; sorted by length before they are cut into batches, or as they come."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i])) if is_sorted else range(len(sequences))
    order = list(order)
    vectors = np.empty((len(sequences), model.config.hidden_size), np.float32)
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        vectors[places] = _mean(model, [sequences[i] for i in places]).cpu().numpy()
    return vectors


def _mean(model: BertModel, batch: list[list[int]]) -> Tensor:
    longest = max(map(len, batch))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
    ids, mask = ids.to(model.device), mask.to(model.device)
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def check(ours: np.ndarray, low: np.ndarray, exact: np.ndarray) -> str:
    """What to print of ours beside the peer in the same dtype, both against the peer in fp32.

    Raises:
        SystemExit: ours is further from it than the contract allows, twice at most and a quarter more in the mean.
    """
    mine, theirs = np.abs(ours - exact), np.abs(low - exact)
    cosines = (ours * exact).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(exact, axis=1)
    said = (
        f"largest error {mine.max():.2e}, the peer's {theirs.max():.2e}; mean {mine.mean():.2e}, the peer's "
        f"{theirs.mean():.2e}; least cosine {cosines.min():.6f}"
    )
    if not (mine.max() <= 2 * theirs.max() and mine.mean() <= 1.25 * theirs.mean()):
        raise SystemExit(f"the numbers are wrong; the times mean nothing: {said}")
    return said
