"""Reads the generator's metrics over HTTP, for the benchmarks in this folder."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "trivium_generator_"


def read_metrics(url: str) -> dict[str, float]:
    """Value of each metric without labels, by its name without the prefix."""
    text = httpx.get(f"{url}/metrics", timeout=60).raise_for_status().text
    return {
        sample.name.removeprefix(_PREFIX): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }
