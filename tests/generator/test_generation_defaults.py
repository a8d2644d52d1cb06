"""The model's own sampling defaults: used for what a request leaves out, and for nothing else."""

import json

import httpx
import pytest
from transformers import GenerationConfig

from services.generator.frontend.generation_defaults import read_generation_defaults
from shared.settings.errors import ModelFolderError
from tests.fakes.service_process import ServiceProcess
from tests.generator.test_api import CHAT, COMPLETION, Api

CONFIG = {
    "temperature": 0.6,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "max_new_tokens": 11,
}
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
OWN = {name: value for name, value in CONFIG.items() if name != "max_new_tokens"}


def folder_with(path, config):
    (path / "generation_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.fixture
def api(tiny_llama, tmp_path):
    """A model whose folder was written by the reference library."""
    GenerationConfig(**CONFIG, do_sample=True, eos_token_id=257).save_pretrained(tmp_path)
    return Api(tiny_llama, defaults=read_generation_defaults(tmp_path))


def sampled(api, path, **fields):
    response = api.post(path, fields)
    assert response.status_code == 200, response.text
    sampling = api.engine.submitted[-1][1]
    return {name: getattr(sampling, name) for name in PLAIN}, sampling.max_tokens


@pytest.mark.parametrize("nulls", [{}, dict.fromkeys([*OWN, "max_tokens"])])
def test_what_a_request_leaves_out_comes_from_the_model(api, nulls):
    assert sampled(api, "/v1/chat/completions", **CHAT, **nulls) == (OWN, 11)
    assert sampled(api, "/v1/completions", **COMPLETION, **nulls) == (OWN, 16)  # its default is the API's own


def test_what_a_request_says_wins(api):
    said = {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    assert sampled(api, "/v1/completions", **COMPLETION, **said)[0] == {**PLAIN, "temperature": 0.0}
    assert sampled(api, "/v1/chat/completions", **CHAT, max_tokens=30)[1] == 30  # a default is no ceiling
    assert sampled(api, "/v1/chat/completions", **CHAT, max_completion_tokens=2)[1] == 2


def test_without_a_file_the_defaults_are_plain(tiny_llama, tmp_path):
    api = Api(tiny_llama, defaults=read_generation_defaults(tmp_path))
    assert sampled(api, "/v1/completions", **COMPLETION)[0] == PLAIN


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "hot"), ("temperature", -1), ("top_p", 0), ("top_k", 2.5), ("max_new_tokens", 0), ("min_p", None)],
)
def test_a_value_that_no_request_could_send_is_left_out(tmp_path, name, value):
    defaults = read_generation_defaults(folder_with(tmp_path, {**CONFIG, name: value}))
    field = name.replace("max_new_tokens", "max_tokens")
    assert getattr(defaults, field) is None
    assert defaults.model_dump(exclude_none=True).keys() == {*OWN, "max_tokens"} - {field}


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path):
    with pytest.raises(ModelFolderError):
        read_generation_defaults(folder_with(tmp_path, "{"))


@pytest.mark.e2e
@pytest.mark.parametrize(("flags", "num_tokens"), [([], 3), (["--generation-config", "vllm"], 5)])
def test_the_flag_decides_whether_the_file_is_read(tiny_llama, tmp_path, flags, num_tokens):
    for file in tiny_llama.iterdir():
        if file.name != "generation_config.json":
            (tmp_path / file.name).symlink_to(file)
    folder_with(tmp_path, {"max_new_tokens": 3, "eos_token_id": 257})
    args = ["--model", str(tmp_path), "--num-threads", "1", "--max-model-len", "24", *flags]
    with ServiceProcess("generator", tmp_path / "log", *args) as service:
        service.wait_ready()
        body = {**CHAT, "ignore_eos": True}
        usage = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=30).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (19, num_tokens)
