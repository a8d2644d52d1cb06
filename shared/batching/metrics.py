"""The metrics of a service that batches: what requests bring, how full forwards are, how long each stage takes.

Declared once here for the embedder and the reranker, under each one's own prefix; their `metrics.py` makes an instance.
"""

from shared.batching.micro_batcher import BatchReport
from shared.observability.metrics import Metrics


class BatchMetrics:
    """Recorded on the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._request_tokens = metrics.histogram("request_tokens", "Tokens of one request, special tokens included.")
        self._batch_rows = metrics.histogram("batch_rows", "Sequences in one forward.")
        self._batch_tokens = metrics.histogram("batch_tokens", "Tokens in one forward, padding not counted.")
        self._tokens = metrics.counter("tokens_total", "Tokens that went through the model, padding not counted.")
        self._padding = metrics.counter(
            "padding_tokens_total", "Padding beside them; padding / (padding + tokens) is the share of waste."
        )
        self._prepare = metrics.histogram("prepare_seconds", "Time to check and tokenize one request.")
        self._queue = metrics.histogram("queue_seconds", "Time from a request's queueing to a forward with it.")
        self._forward = metrics.histogram("forward_seconds", "Time of one forward, layout and copies included.")
        self.queued_rows = metrics.gauge("queued_rows", "Sequences that wait for a forward.")
        self.queued_tokens = metrics.gauge("queued_tokens", "Tokens that wait for a forward.")
        self.requests_inside = metrics.gauge("requests_inside", "Requests being prepared, queued or run.")

    def on_prepared(self, num_tokens: int, seconds: float) -> None:
        """A request has been tokenized."""
        self._request_tokens.observe(num_tokens)
        self._prepare.observe(seconds)

    def on_batch(self, report: BatchReport) -> None:
        """A forward has run."""
        self._batch_rows.observe(report.num_rows)
        self._batch_tokens.observe(report.num_tokens)
        self._tokens.inc(report.num_tokens)
        self._padding.inc(report.num_padding_tokens)
        self._forward.observe(report.forward_s)
        for seconds in report.queue_s:
            self._queue.observe(seconds)
