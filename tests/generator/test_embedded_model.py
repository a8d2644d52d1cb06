"""The embedded model end to end in one process: its known answer, and that company changes nobody's text."""

import json
import random

import httpx
import pytest

from services.generator.core.request import SamplingParams
from services.generator.engine.build import build_model
from services.generator.frontend.chat_template_files import load_chat_template
from services.generator.settings import GeneratorSettings
from tests.fakes.service_process import ServiceProcess
from tests.generator.driving import OfflineEngine

pytestmark = [pytest.mark.models, pytest.mark.slow]
WORDS = (  # noqa: SIM905 - a list of forty literals would fill a page
    "the harbour master counted eleven lanterns before dawn while rain drummed on copper roofs and a ferry turned slowly "
    "towards the northern pier where bakers carried warm bread past sleeping cats 17 42 2026 (twice) – why? because of fog"
).split()


@pytest.fixture(scope="module")
def engine(models_dir):
    folder = models_dir / "smollm2-135m-instruct"
    return OfflineEngine(build_model(GeneratorSettings(model=str(folder), max_num_batched_tokens=256)))


def long_prompts(tokenizer, rng, count):
    return [tokenizer.encode(" ".join(rng.choices(WORDS, k=rng.randint(80, 160)))) for _ in range(count)]


def test_the_capital_of_france(engine, models_dir, smollm_tokenizer):
    template = load_chat_template(models_dir / "smollm2-135m-instruct")
    assert template is not None
    text = template.render([{"role": "user", "content": "What is the capital of France? Answer in one sentence."}])
    prompt = smollm_tokenizer.encode(text, add_special_tokens=False)
    end = smollm_tokenizer.token_to_id("<|im_end|>")
    (output,) = engine.generate([prompt], max_tokens=30, stop_token_ids=frozenset([end]))
    assert smollm_tokenizer.decode(output, skip_special_tokens=True) == "The capital of France is Paris."


def test_32_requests_of_random_length_get_together_what_each_gets_alone(engine, smollm_tokenizer):
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 60))) for _ in range(32)]
    prompts = [smollm_tokenizer.encode(text) for text in texts]
    alone = [engine.generate([prompt], max_tokens=10)[0] for prompt in prompts]
    assert engine.generate(prompts, max_tokens=10) == alone


def test_a_prompt_found_in_the_prefix_cache_gives_what_it_gives_cold(engine, smollm_tokenizer):
    prompts = long_prompts(smollm_tokenizer, random.Random(1), 3)
    cold = engine.generate(prompts, max_tokens=12)
    hits = engine.stats().num_prefix_hit_tokens
    assert engine.generate(prompts, max_tokens=12) == cold
    expected = sum((len(prompt) - 1) // 16 * 16 for prompt in prompts)
    assert engine.stats().num_prefix_hit_tokens - hits == expected


def test_a_prompt_in_chunks_gives_what_it_gives_whole(engine, models_dir, smollm_tokenizer):
    prompts = long_prompts(smollm_tokenizer, random.Random(2), 3)
    folder = str(models_dir / "smollm2-135m-instruct")
    settings = GeneratorSettings(
        model=folder,
        max_num_batched_tokens=37,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=2**28,
        max_model_len=512,
    )
    chunked = OfflineEngine(build_model(settings))
    assert chunked.generate(prompts, max_tokens=12) == engine.generate(prompts, max_tokens=12)


def test_draws_depend_on_the_seed_alone(engine, smollm_tokenizer):
    """What four choices of one request are: the same prompt with four seeds, together, alone, and once more."""
    prompt = smollm_tokenizer.encode("The harbour master")
    sampling = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 12}
    alone = [engine.generate([prompt], seed=seed, **sampling)[0] for seed in range(4)]
    four = [SamplingParams(seed=seed, **sampling) for seed in range(4)]
    together = engine.generate([prompt] * 4, each=four)
    assert together == alone == engine.generate([prompt] * 4, each=four)
    assert len({tuple(output) for output in alone}) == 4


def test_a_schema_makes_the_answer_one_that_parses(models_dir, tmp_path):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "is_capital": {"type": "boolean"}},
        "required": ["city", "is_capital"],
        "additionalProperties": False,
    }
    body = {
        "messages": [{"role": "user", "content": "Name the capital of France, as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}},
        "temperature": 0,
        "max_tokens": 60,
    }
    folder = str(models_dir / "smollm2-135m-instruct")
    with ServiceProcess("generator", tmp_path / "log", "--model", folder, "--num-threads", "1") as service:
        service.wait_ready()
        response = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=120)
        with httpx.stream(
            "POST", f"{service.url}/v1/chat/completions", json={**body, "stream": True}, timeout=120
        ) as stream:
            lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    (choice,) = response.json()["choices"]
    answer = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert set(answer) == {"city", "is_capital"}
    assert isinstance(answer["city"], str)
    assert isinstance(answer["is_capital"], bool)
    chunks = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines[:-1]]
    assert "".join(chunks) == choice["message"]["content"]
