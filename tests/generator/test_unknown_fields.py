"""Fields that this API does not know: refused by name, or dropped where the operator says so, which changes nothing else."""

import httpx
import pytest

from services.generator.settings import GeneratorSettings
from shared.settings.base import load_settings
from tests.fakes.service_process import ServiceProcess
from tests.generator.test_api import CHAT, COMPLETION, Api

FOREIGN = [
    ("/v1/completions", {**COMPLETION, "use_beam_search": True}, "use_beam_search"),
    ("/v1/chat/completions", {**CHAT, "top_a": 0.5, "n": 1}, "top_a"),
    ("/v1/chat/completions", {"messages": [{**CHAT["messages"][0], "tone": "dry"}]}, "messages.0.tone"),
    ("/v1/completions", {**COMPLETION, "stream": True, "stream_options": {"often": True}}, "stream_options.often"),
    ("/tokenize", {"prompt": "a", "return_token_strs": False}, "return_token_strs"),
    ("/detokenize", {"tokens": [1], "raw": True}, "raw"),
]
REFUSED = [
    ("/v1/completions", {**COMPLETION, "best_of": 2}, "best_of"),
    ("/v1/chat/completions", {**CHAT, "tools": [{}]}, "tools"),
    ("/v1/chat/completions", {**CHAT, "temperature": "0"}, "temperature"),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"foo": 1}}, "chat_template_kwargs.foo"),
    ("/v1/chat/completions", {"messages": [{**CHAT["messages"][0], "audio": {}}]}, "messages.0.audio"),
]


@pytest.mark.parametrize(("path", "body", "param"), FOREIGN)
def test_an_unknown_field_is_refused_by_name_unless_the_operator_says_otherwise(tiny_llama, path, body, param):
    response = Api(tiny_llama).post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert Api(tiny_llama, ignores_unknown_fields=True).post(path, body).status_code == 200


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
def test_known_fields_are_refused_all_the_same(tiny_llama, path, body, param):
    response = Api(tiny_llama, ignores_unknown_fields=True).post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_the_flag_is_off_by_default():
    assert load_settings(GeneratorSettings, ["--model", "x"]).ignore_unknown_fields is False
    assert load_settings(GeneratorSettings, ["--model", "x", "--ignore-unknown-fields"]).ignore_unknown_fields is True


@pytest.mark.e2e
def test_the_flag_is_said_at_start_and_reaches_the_routes(tiny_llama, tmp_path):
    args = ["--model", str(tiny_llama), "--num-threads", "1", "--ignore-unknown-fields"]
    with ServiceProcess("generator", tmp_path / "log", *args) as service:
        service.wait_ready()
        assert "unknown_fields_are_ignored" in service.log()
        response = httpx.post(f"{service.url}/v1/completions", json={**COMPLETION, "use_beam_search": True})
        assert response.status_code == 200
