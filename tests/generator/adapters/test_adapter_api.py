"""Adapters through HTTP and in process: named as model or as lora, listed, their text that of `peft`; wrong starts say why."""

import httpx
import pytest

from services.generator import LLM
from shared.errors import AdapterNotFoundError, InvalidRequestError
from shared.settings.errors import StartError
from tests.fakes.service_process import ServiceProcess
from tests.generator.adapters.conftest import make_adapter, reference_tokens
from tests.generator.conftest import save_tiny_llama

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
PROMPT = [5, 6, 7, 8, 9]
GREEDY = {"prompt": PROMPT, "temperature": 0, "max_tokens": 6, "logprobs": 0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    base = save_tiny_llama(root / "base", eos_token_id=None)
    return {"base": base, "a": make_adapter(base, root / "a", seed=1), "b/1": make_adapter(base, root / "b", seed=2)}


@pytest.fixture(scope="module")
def service(folders, tmp_path_factory):
    flags = [flag for name in ("a", "b/1") for flag in ("--lora", f"{name}={folders[name]}")]
    log = tmp_path_factory.mktemp("service") / "log"
    with ServiceProcess("generator", log, "--model", str(folders["base"]), "--num-threads", "1", *flags) as process:
        process.wait_ready()
        yield process


def complete(service, **fields):
    return httpx.post(f"{service.url}/v1/completions", json={**GREEDY, **fields}, timeout=60)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "fields", [{"model": "a"}, {"lora": "a"}, {"model": "base", "lora": "a"}, {"model": "a", "lora": "a"}]
)
def test_an_adapter_is_named_as_model_or_as_lora(service, folders, fields):
    response = complete(service, **fields)
    plain = complete(service).json()
    answer = response.json()
    assert answer["model"] == "a"
    name, _, digest = response.headers["x-trivium-adapter"].partition("@")
    listed = {item["name"]: item for item in httpx.get(f"{service.url}/v1/adapters").json()["data"]}
    assert (name, digest) == ("a", listed["a"]["digest"])
    assert plain["model"] == "base"
    assert answer["choices"][0]["text"] != plain["choices"][0]["text"]


@pytest.mark.e2e
def test_models_and_adapters_are_listed(service, folders):
    models = {entry["id"]: entry for entry in httpx.get(f"{service.url}/v1/models").json()["data"]}
    assert set(models) == {"base", "a", "b/1"}
    assert (models["a"]["parent"], models["a"]["root"]) == ("base", str(folders["a"]))
    assert "parent" not in models["base"]
    entry = httpx.get(f"{service.url}/v1/adapters").json()["data"][0]
    assert (entry["max_rank"], entry["num_modules"]) == (4, 14)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "nobody"}, 404, "model"),
        ({"lora": "nobody"}, 404, "lora"),
        ({"model": "a", "lora": "b/1"}, 400, "lora"),
        ({"lora": 5}, 400, "lora"),
        ({"adapter_slot": 1}, 400, "adapter_slot"),
    ],
)
def test_a_wrong_name_is_refused(service, fields, status, param):
    response = complete(service, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


@pytest.mark.e2e
def test_chat_and_streams_take_adapters_too(service):
    body = {"model": "a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=body, timeout=60) as stream:
        assert stream.headers["x-trivium-adapter"].startswith("a@")
        lines = [line for line in stream.iter_lines() if line]
    assert '"model":"a"' in lines[0]


def test_in_process_each_prompt_may_have_its_own_adapter(folders):
    flags = [f"{name}={folders[name]}" for name in ("a", "b/1")]
    names = [None, "a", "b/1", "a"]
    sampling = {"temperature": 0, "max_tokens": 6}
    with LLM(str(folders["base"]), num_threads=1, lora=flags) as llm:
        generations = llm.generate([PROMPT] * 4, sampling, lora=names)
        (same,) = llm.generate(PROMPT, sampling, lora="b/1")
        with pytest.raises(InvalidRequestError, match="2 adapters for 1 prompts"):
            llm.generate([PROMPT], sampling, lora=["a", "a"])
        with pytest.raises(AdapterNotFoundError):
            llm.generate(PROMPT, sampling, lora="nobody")
    for name, generation in zip(names, generations, strict=True):
        adapter = None if name is None else folders[name]
        assert generation.choices[0].token_ids == reference_tokens(folders["base"], adapter, PROMPT, 6)
    assert same.text == generations[2].text


@pytest.mark.parametrize(
    ("flags", "settings", "message"),
    [
        (["a={nowhere}"], {}, "adapter_config.json: is missing"),
        (["base={a}"], {}, "name of the base model"),
        (["a={a}"], {"max_lora_rank": 2}, "rank 4, above --max-lora-rank 2"),
    ],
)
def test_an_adapter_that_cannot_be_served_stops_the_start(folders, tmp_path, flags, settings, message):
    flags = [flag.format(nowhere=tmp_path, a=folders["a"]) for flag in flags]
    with pytest.raises(StartError, match=message):
        LLM(str(folders["base"]), num_threads=1, lora=flags, **settings)


@pytest.mark.parametrize("value", ["a", "=x", "a=", "-a=x", "a b=x"])
def test_a_flag_that_is_not_name_and_folder_is_refused(folders, value):
    with pytest.raises(StartError, match="NAME=FOLDER"):
        LLM(str(folders["base"]), lora=[value])
