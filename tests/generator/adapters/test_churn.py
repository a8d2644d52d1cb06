"""Adapters loaded, unloaded, replaced and named at random over HTTP: no wrong text, no leak, every refusal with its reason."""

import pytest

from tests.fakes.service_process import ServiceProcess
from tests.generator.adapters.churn import NUM_CONTENTS, NUM_PLACES, NUM_SLOTS, Churn, prepare

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
SECONDS = 4


def test_churn_mixes_nothing_up_and_leaks_nothing(tmp_path):
    with ServiceProcess("generator", tmp_path / "log", *prepare(tmp_path)) as process:
        process.wait_ready()
        churn = Churn(process.url)
        churn.learn()
        churn.run(SECONDS)
        listed = churn.rest()
        assert churn.problems == []
        assert churn.counts["complete ok"] > 20
        assert churn.counts["load ok"] > 5
        assert churn.counts["unload ok"] > 0
        assert sorted(item["name"] for item in listed["data"]) == [f"c{number}" for number in range(NUM_CONTENTS)]
        in_host = [item for item in listed["data"] if item["tier"] != "disk"]
        on_device = [item for item in in_host if item["tier"] == "device"]
        bank = listed["bank"]
        assert (bank["num_in_host"], bank["num_in_slots"]) == (len(in_host), len(on_device))
        assert len(in_host) <= NUM_PLACES
        assert len(on_device) <= NUM_SLOTS
        assert bank["host_bytes"] == sum(item["num_bytes"] for item in in_host)
        assert process.metric("trivium_generator_used_kv_blocks") == 0
        assert process.metric("trivium_generator_running_sequences") == 0
        assert "this is a bug" not in process.log()
