"""The embedded model end to end in one process: its known answer, and that company changes nobody's text."""

import random

import pytest

from services.generator.engine.build import build_model
from services.generator.frontend.chat_template import load_chat_template
from services.generator.settings import GeneratorSettings
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
    together = engine.generate_seeds(prompt, range(4), **sampling)
    assert together == alone == engine.generate_seeds(prompt, range(4), **sampling)
    assert len({tuple(output) for output in alone}) == 4
