"""The bi-encoder's score from rows alone, and the order of results.

No model is needed.
"""

import numpy as np
import pytest

from services.reranker.api import rank
from services.reranker.scorers import BiEncoderScorer
from shared.contracts.rerank import RerankRequest


def test_cosine_of_rows_of_any_length() -> None:
    rows = np.array([[2, 0], [3, 3], [-1, 0], [0, 0]], np.float32)
    assert BiEncoderScorer().scores(rows) == pytest.approx([0.5**0.5, -1, 0])


def test_ties_keep_the_order_of_the_request() -> None:
    request = RerankRequest(query="q", documents=["a", "b", "c", "d"], top_n=3)
    results = rank(request, [0.5, 0.9, 0.5, 0.9])
    assert [result.index for result in results] == [1, 3, 0]
