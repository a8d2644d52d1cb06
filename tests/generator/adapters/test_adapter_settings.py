"""What the start says about settings of adapters that do not go together, and about adapters that it was told to have."""

import httpx
import pytest

from services.generator import LLM
from services.generator.core.adapter_view import AdapterView
from services.generator.core.adapters import AdapterCounts, AdapterDescription, AdapterState, AdapterTier, BankContract
from services.generator.core.messages import AdapterChanges
from services.generator.engine.build import build_model
from services.generator.metrics import GeneratorMetrics
from services.generator.settings import GeneratorSettings
from shared.settings.errors import StartError
from tests.generator.adapters.conftest import make_adapter, reference_tokens
from tests.generator.conftest import save_tiny_llama
from tests.generator.test_api import Api

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("settings")
    base = save_tiny_llama(root / "base", eos_token_id=None)
    return {"base": base, "root": root / "root", "a": make_adapter(base, root / "root" / "a", seed=1)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": ["a={a}"], "max_cpu_loras": 8}, "--max-cpu-loras 8 is less than --max-loras 16"),
        ({"lora": ["a={a}"], "allow_runtime_lora": True}, "--allow-runtime-lora needs an --admin-api-key"),
        ({"admin_api_key": "k", "allow_runtime_lora": True}, "--allow-runtime-lora needs"),
        ({"lora": ["a={a}"], "lora_preload": ["a"]}, "--lora-preload needs a --lora-root"),
        ({"lora_root": ["{root}"], "lora_preload": ["b"]}, "--lora-preload b: there is no such adapter"),
        ({"lora_root": ["{root}/nowhere"]}, "--lora-root .*nowhere cannot be used"),
        ({"lora_root": ["{root}/a/adapter_config.json"]}, "is no folder"),
        ({"lora": ["a={a}"], "strict_adapter_base": True, "served_model_name": "x"}, "as its base, not 'x'"),
    ],
)
def test_what_cannot_be_stops_the_start(folders, settings, message):
    filled = {
        name: [item.format(**folders) for item in value] if isinstance(value, list) else value
        for name, value in settings.items()
    }
    with pytest.raises(StartError, match=message):
        LLM(str(folders["base"]), num_threads=1, **filled)


def test_in_process_adapters_below_a_root_are_read_when_they_are_named(folders):
    with LLM(str(folders["base"]), num_threads=1, lora_root=[str(folders["root"])], lora_preload=["a"]) as llm:
        (generation,) = llm.generate([5, 6, 7], {"temperature": 0, "max_tokens": 5}, lora="a")
    assert generation.choices[0].token_ids == reference_tokens(folders["base"], folders["a"], [5, 6, 7], 5)


def test_what_is_read_at_the_start_counts_as_read(folders):
    """Its seconds too, or the price of a read would come out too low."""
    lora = [f"named={folders['a']}"]
    built = build_model(GeneratorSettings(model=str(folders["base"]), lora=lora))
    known = built.adapters.snapshots.everything()
    (state,), counts = known.changed, known.counts
    assert state.description.num_bytes == counts.host_bytes > 0
    assert counts.num_host_loads == 1
    assert counts.host_load_s > 0


@pytest.mark.parametrize("what", ["load", "unload", "pin"])
def test_adapters_do_not_change_where_the_flag_is_missing(folders, what):
    response: httpx.Response = Api(folders["base"]).post(f"/v1/{what}_lora_adapter", {})
    assert response.status_code == 403
    assert "--allow-runtime-lora" in response.json()["error"]["message"]


def test_metrics_say_what_the_view_says_and_name_adapters_as_the_kubernetes_gateway_reads_them():
    metrics, view = GeneratorMetrics(), AdapterView()
    metrics.watch_adapters(lambda: view)
    view.bank = BankContract(8, 4, 8, (), 1024, 2)
    states = [
        AdapterState(number, AdapterDescription(name, name, 4, 1, (), 8), AdapterTier.HOST, **counts)
        for number, (name, counts) in enumerate(
            {
                "a": {"num_requests": 3, "num_running": 2},
                "b": {"num_requests": 1, "num_running": 1},
                "c": {"num_requests": 1},
                "d": {},
            }.items()
        )
    ]
    seconds = {"host_load_s": 0.5, "device_load_s": 0.25}
    counts = AdapterCounts(num_host_hits=7, num_device_loads=3, device_load_bytes=84, **seconds)
    view.take(AdapterChanges(states, [], counts))
    read = metrics.all.registry.get_sample_value
    assert read("trivium_generator_adapter_hits_total", {"tier": "host"}) == 7
    assert read("trivium_generator_adapter_loads_total", {"tier": "device"}) == 3
    assert read("trivium_generator_adapter_load_seconds_total", {"tier": "host"}) == 0.5
    assert read("trivium_generator_adapter_load_seconds_total", {"tier": "device"}) == 0.25
    assert read("trivium_generator_adapter_copied_bytes_total") == 84
    labels = {"max_lora": "4", "running_lora_adapters": "a,b", "waiting_lora_adapters": "a,c"}
    assert read("vllm:lora_requests_info", labels) > 0
