"""All metrics of the gateway itself; those of HTTP as such are declared in `shared.http`."""

from shared.observability.metrics import Metrics


class GatewayMetrics:
    """What forwarding did; every label is bounded by the number of services, codes, kinds and states."""

    def __init__(self, metrics: Metrics) -> None:
        self.upstream_requests = metrics.counter(
            "upstream_requests_total", "Answers of a service, by HTTP status.", ("service", "code")
        )
        self.upstream_errors = metrics.counter(
            "upstream_errors_total", "Attempts that ended without a complete answer.", ("service", "kind")
        )
        self.retries = metrics.counter("upstream_retries_total", "Requests given to another replica.", ("service",))
        self.first_byte = metrics.histogram(
            "upstream_first_byte_seconds",
            "From the request's arrival to the head of the service's answer.",
            ("service",),
        )
        self.in_flight = metrics.gauge("requests_in_flight", "Forwarded requests not yet answered.", ("service",))
        self.replicas = metrics.gauge("upstream_replicas", "Replicas known, by state.", ("service", "state"))
