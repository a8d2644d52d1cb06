"""All metrics of the generator's API process; their values come with the engine's events.

Declared here, used by the routes and by `app.py`. Names follow `shared.observability.metrics`.
"""

import time
from collections.abc import Callable

from services.generator.core.adapter_view import AdapterView
from services.generator.core.launch import Launch
from services.generator.core.messages import EngineStats
from shared.observability.metrics import Metrics, Samples


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

    def watch(
        self, stats: Callable[[], EngineStats], *, num_restarts: Callable[[], int], num_graphs: Callable[[], int]
    ) -> None:
        """Export the engine's levels, and how often it was started again, as they are when somebody asks."""
        self.all.counter_read_from("engine_restarts_total", "Engines started in place of one that died.", num_restarts)
        self.all.gauge("step_graphs", "CUDA graphs captured for steps.").set_function(num_graphs)
        for name, description, field in (
            ("running_sequences", "Sequences in the running batch.", "num_running"),
            ("waiting_sequences", "Sequences waiting for a place.", "num_waiting"),
            ("used_kv_blocks", "KV blocks held by sequences.", "num_used_blocks"),
            ("image_rows", "Rows of images in the encoder's cache.", "num_image_rows"),
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
            ("encoded_images_total", "Images that went through the vision encoder.", "num_encoded_images"),
            ("encoded_image_rows_total", "Rows that it made of them.", "num_encoded_rows"),
            ("image_hits_total", "Images whose rows were in the encoder's cache already.", "num_image_hits"),
        ):
            self.all.counter_read_from(name, description, _reader(stats, field))
        self.all.family_read_from(
            "steps_total",
            "Steps, by how they were launched: a graph's replay, or piece by piece and why.",
            ("launch",),
            lambda: [((launch,), float(stats().num_steps.get(launch, 0))) for launch in Launch],
        )

    def watch_images(
        self, *, num_hits: Callable[[], int], num_misses: Callable[[], int], num_bytes: Callable[[], int]
    ) -> None:
        """Export what is known of prepared images, as it is when somebody asks."""
        self.all.gauge("prepared_image_bytes", "Pixels of prepared images that are kept.").set_function(num_bytes)
        for name, description, read in (
            ("prepared_image_hits_total", "Image files that had been decoded and prepared already.", num_hits),
            ("prepared_image_misses_total", "Image files that had not.", num_misses),
        ):
            self.all.counter_read_from(name, description, read)

    def watch_adapters(self, view: Callable[[], AdapterView]) -> None:
        """Export what is known of adapters, as it is when somebody asks."""
        for name, description, host, device in (
            (
                "adapter_hits_total",
                "Requests whose adapter was in the tier already.",
                "num_host_hits",
                "num_device_hits",
            ),
            ("adapter_misses_total", "Those whose adapter was not.", "num_host_misses", "num_device_loads"),
            ("adapter_loads_total", "Adapters that came into the tier.", "num_host_loads", "num_device_loads"),
            ("adapter_evictions_total", "Those that left for others.", "num_host_evictions", "num_device_evictions"),
            (
                "adapter_load_seconds_total",
                "Time spent on reading and checking adapters (host), and on copying them into slots (device).",
                "host_load_s",
                "device_load_s",
            ),
            ("adapters", "Adapters in the tier.", "num_in_host", "num_in_slots"),
        ):
            self.all.family_read_from(name, description, ("tier",), _tiers(view, host, device))
        for name, description, field in (
            ("adapter_copied_bytes_total", "Bytes of adapters that were copied into slots.", "device_load_bytes"),
            ("adapter_host_bytes", "Host memory of adapters.", "host_bytes"),
        ):
            self.all.family_read_from(name, description, (), _single(view, field))
        self.all.family_read_from(
            "adapter_bank_bytes", "Device memory of all slots.", (), lambda: [((), float(_bank_bytes(view())))]
        )
        self.all.alias_read_from(
            "vllm:lora_requests_info",
            "Adapters with running and with waiting requests, as the Kubernetes inference gateway reads them.",
            ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
            lambda: _lora_requests_info(view()),
        )


def _tiers(view: Callable[[], AdapterView], host: str, device: str) -> Callable[[], Samples]:
    return lambda: [
        (("host",), float(getattr(view().counts, host))),
        (("device",), float(getattr(view().counts, device))),
    ]


def _single(view: Callable[[], AdapterView], field: str) -> Callable[[], Samples]:
    return lambda: [((), float(getattr(view().counts, field)))]


def _bank_bytes(view: AdapterView) -> int:
    return 0 if view.bank is None else view.bank.bank_bytes


def _lora_requests_info(view: AdapterView) -> Samples:
    """One sample, whose value is the time, since the newest of several counts."""
    if view.bank is None:
        return []
    states = view.versions()
    running = sorted({state.name for state in states if state.num_running})
    waiting = sorted({state.name for state in states if state.num_requests > state.num_running})
    return [((str(view.bank.num_slots), ",".join(running), ",".join(waiting)), time.time())]


def _reader(stats: Callable[[], EngineStats], field: str) -> Callable[[], float]:
    return lambda: float(getattr(stats(), field))
