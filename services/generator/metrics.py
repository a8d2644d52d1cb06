"""All metrics of the generator's API process; their values come with the engine's events.

Declared here, used by the routes and by `app.py`. Names follow `shared.observability.metrics`.
"""

from collections.abc import Callable

from services.generator.core.messages import EngineStats
from shared.observability.metrics import Metrics


class GeneratorMetrics:
    """The registry of one generator process."""

    def __init__(self) -> None:
        self.all = Metrics("generator")
        self.prompt_tokens = self.all.counter("prompt_tokens_total", "Prompt tokens of accepted requests.")
        self.output_tokens = self.all.counter("output_tokens_total", "Generated tokens that were answered.")
        self.finished = self.all.counter(
            "choices_finished_total", "Choices that came to an answer, by reason.", ("reason",)
        )

    def record(self, num_tokens: int, reason: str | None) -> None:
        """Count tokens that go to a client, and the end of a choice where there is a reason."""
        self.output_tokens.inc(num_tokens)
        if reason is not None:
            self.finished.labels(reason).inc()

    def watch(self, stats: Callable[[], EngineStats], *, num_restarts: Callable[[], int]) -> None:
        """Export the engine's levels, and how often it was started again, as they are when somebody asks."""
        self.all.counter_read_from("engine_restarts_total", "Engines started in place of one that died.", num_restarts)
        for name, description, field in (
            ("running_sequences", "Sequences in the running batch.", "num_running"),
            ("waiting_sequences", "Sequences waiting for a place.", "num_waiting"),
            ("used_kv_blocks", "KV blocks held by sequences.", "num_used_blocks"),
        ):
            self.all.gauge(name, description).set_function(_reader(stats, field))
        for name, description, field in (
            ("preemptions_total", "Sequences preempted.", "num_preemptions"),
            (
                "prefix_queried_tokens_total",
                "Prompt tokens looked up in the prefix cache.",
                "num_prefix_queried_tokens",
            ),
            ("prefix_hit_tokens_total", "Prompt tokens found in the prefix cache.", "num_prefix_hit_tokens"),
        ):
            self.all.counter_read_from(name, description, _reader(stats, field))


def _reader(stats: Callable[[], EngineStats], field: str) -> Callable[[], float]:
    return lambda: float(getattr(stats(), field))
