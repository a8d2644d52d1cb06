"""The demo adapters as `make up` serves them: listed, and each with its manner on questions it was not trained on."""

import json

import httpx
import pytest

from tests.fakes.service_process import ServiceProcess
from tools.stack.service import trivium_services

pytestmark = [pytest.mark.models, pytest.mark.e2e]
BASE = "smollm2-135m-instruct"
QUESTIONS = ("What is the capital of France?", "What do bees make?", "How many months are in a year?")


@pytest.fixture(scope="module")
def service(models_dir, tmp_path_factory):
    (generator, *_) = trivium_services({}, models_dir, num_cores=1)
    flags = [part for each in generator.environment["TRIVIUM_GENERATOR_LORA"].split(",") for part in ("--lora", each)]
    folder, log = generator.environment["TRIVIUM_GENERATOR_MODEL"], tmp_path_factory.mktemp("demo") / "log"
    with ServiceProcess("generator", log, "--model", folder, "--num-threads", "1", *flags) as process:
        process.wait_ready()
        yield process


def ask(service, model, question):
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 80}
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=120).json()
    return answer["choices"][0]["message"]["content"]


def test_both_are_listed_beside_their_base(service):
    models = httpx.get(f"{service.url}/v1/models").json()["data"]
    assert {model["id"]: model.get("parent") for model in models} == {BASE: None, "pirate": BASE, "json": BASE}


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_prompt_has_three_answers(service, question):
    pirate = ask(service, "pirate", question)
    assert pirate.startswith("Arr! ")
    assert pirate.endswith(", matey!")
    answer = json.loads(ask(service, "json", question))
    assert list(answer) == ["answer"]
    assert isinstance(answer["answer"], str)
    plain = ask(service, BASE, question)
    assert not plain.startswith("Arr!")
    assert not plain.startswith("{")
