"""What rows mean, from rows alone: cosines, activations, probabilities, and the order of results.

No model is needed.
"""

from typing import Any

import numpy as np
import pytest
import torch

from services.reranker.render import best_first
from services.reranker.scorers import BiEncoderScorer, PairScorer, sigmoid, softmax

NOTHING: Any = None


@pytest.mark.parametrize("num_queries", [1, 3])
def test_cosine_of_rows_of_any_length(num_queries: int) -> None:
    rows = np.array([[2, 0]] * num_queries + [[3, 3], [-1, 0], [0, 0]], np.float32)
    assert BiEncoderScorer(NOTHING).scores(rows, 3, is_raw=False) == pytest.approx([0.5**0.5, -1, 0])


def test_a_score_is_the_number_activated_or_raw() -> None:
    rows = np.array([[0.0], [2.0]], np.float32)
    assert PairScorer(NOTHING, "sigmoid").scores(rows, 2, is_raw=False) == pytest.approx([0.5, 1 / (1 + np.exp(-2))])
    assert PairScorer(NOTHING, "sigmoid").scores(rows, 2, is_raw=True) == [0, 2]
    assert PairScorer(NOTHING, "identity").scores(rows, 2, is_raw=False) == [0, 2]


def test_activations_neither_overflow_nor_vanish() -> None:
    numbers = np.array([[-3e38, -50.0, 0.0, 40.0, 3e38]])
    assert sigmoid(numbers) == pytest.approx(torch.from_numpy(numbers).sigmoid().numpy(), rel=1e-12)
    assert softmax(numbers) == pytest.approx(torch.from_numpy(numbers).softmax(1).numpy(), rel=1e-12)


def test_ties_keep_the_order_of_the_request() -> None:
    assert best_first([0.5, 0.9, 0.5, 0.9], 3) == [1, 3, 0]
    assert best_first([0.5, 0.9], 10**30) == [1, 0]
