"""All metrics of the reranker, under the prefix `trivium_reranker_`.

Made once by `app`; what every batching service counts is declared in `shared.batching.metrics`.
"""

from shared.batching.metrics import BatchMetrics
from shared.observability.metrics import Metrics


class RerankerMetrics:
    """`base` is for the HTTP side, `batches` for the way through the model."""

    def __init__(self) -> None:
        self.base = Metrics("reranker")
        self.batches = BatchMetrics(self.base)
