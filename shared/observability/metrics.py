"""How a service declares its Prometheus metrics: names are checked and buckets come from the name's suffix.

Called by each service's `metrics.py` and by `shared.http`. Must not hold a metric of any one service.
Names follow `trivium_<service>_<noun>[_<unit>][_total]`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_NAME = re.compile(r"^[a-z]+(_[a-z]+)*$")
_BUCKETS: dict[str, tuple[float, ...]] = {
    "_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    "_tokens": (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072),
    "_bytes": tuple(float(4**power) for power in range(5, 19)),
    "_rows": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
}


Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the value itself."""


class _ReadFamily(Collector):
    """A metric whose values somebody else keeps; a counter where its name ends in `_total`."""

    def __init__(self, name: str, description: str, labels: Sequence[str], read: Callable[[], Samples]) -> None:
        self._kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        self._head = (name, description)
        self._labels = labels
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = self._kind(*self._head, labels=self._labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family


class Metrics:
    """The metrics of one service, in a registry of their own so that two apps can live in one test process."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"trivium_{service}_"

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """A count that only grows; `name` ends in `_total`."""
        if not name.endswith("_total"):
            raise ValueError(f"counter {name!r} must end in _total")
        return Counter(self._full(name), description, labels, registry=self.registry)

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
        """A level that goes up and down."""
        return Gauge(self._full(name), description, labels, registry=self.registry)

    def counter_read_from(self, name: str, description: str, read: Callable[[], float]) -> None:
        """A count that somebody else keeps, asked for at each scrape; `name` ends in `_total`."""
        full = self._full(name)
        if not name.endswith("_total"):
            raise ValueError(f"counter {name!r} must end in _total")
        self.registry.register(_ReadFamily(full, description, (), lambda: [((), read())]))

    def family_read_from(self, name: str, description: str, labels: Sequence[str], read: Callable[[], Samples]) -> None:
        """Counts or levels by label that somebody else keeps, asked for at each scrape; counts end in `_total`."""
        self.registry.register(_ReadFamily(self._full(name), description, labels, read))

    def alias_read_from(self, name: str, description: str, labels: Sequence[str], read: Callable[[], Samples]) -> None:
        """The same under a name that tools of others look for, as it is."""
        self.registry.register(_ReadFamily(name, description, labels, read))

    def histogram(self, name: str, description: str, labels: Sequence[str] = ()) -> Histogram:
        """A distribution; the suffix (`_seconds`, `_tokens`, `_bytes`, `_rows`) chooses the buckets."""
        for suffix, buckets in _BUCKETS.items():
            if name.endswith(suffix):
                return Histogram(self._full(name), description, labels, registry=self.registry, buckets=buckets)
        raise ValueError(f"histogram {name!r} must end in one of {sorted(_BUCKETS)}")

    def _full(self, name: str) -> str:
        if not _NAME.match(name):
            raise ValueError(f"metric name {name!r} must be lower-case words joined by _")
        return self._prefix + name
