"""Structured output on a tiny random model: whatever it draws is valid, and rows without a grammar are not touched by it."""

import asyncio
import json
import re

import pytest

from services.generator.core.grammar import GrammarsUnsupportedError, compile_grammar, make_grammar_tokenizer
from services.generator.core.messages import StepEvents, Submit
from services.generator.core.request import FinishReason, Request, SamplingParams
from services.generator.engine.build import build_model
from services.generator.engine.loop import EngineLoop
from services.generator.engine.transport import InMemoryTransport
from services.generator.frontend.model_card import ModelCard
from services.generator.frontend.structured import GrammarReader
from services.generator.settings import GeneratorSettings
from shared.contracts.completions import CompletionRequest
from shared.text.tokenizer import Tokenizer
from tests.generator.conftest import save_tiny_llama
from tests.generator.driving import OfflineEngine

EOS = 257
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pet": {"enum": ["cat", "dog", None]},
    },
    "required": ["name", "age", "pet"],
    "additionalProperties": False,
}
SUM = 'start: term ("+" term){1,3}\nterm: /[0-9]{1,3}/ | "(" start ")"\n'
SUM_IN_PYTHON = re.compile(r"[0-9+()]+")


def is_person(text):
    value = json.loads(text)
    return (
        set(value) == {"name", "age", "pet"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and value["pet"] in ("cat", "dog", None)
    )


def is_sum(text):
    """Python's own grammar reads it; leading zeros are no numbers there."""
    return bool(SUM_IN_PYTHON.fullmatch(text)) and eval(re.sub(r"\b0+(?=\d)", "", text)) >= 0


MODES = {
    "json": ({"structured_outputs": {"json": PERSON}}, is_person),
    "json_text": ({"structured_outputs": {"json": json.dumps(PERSON)}}, is_person),
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}},
        is_person,
    ),
    "regex": (
        {"structured_outputs": {"regex": "[ab]{3,20}é[0-9]+(x|yz)"}},
        lambda text: re.fullmatch("[ab]{3,20}é[0-9]+(x|yz)", text),
    ),
    "choice": ({"structured_outputs": {"choice": ["yes", "no", 'a "b"\n/c']}}, {"yes", "no", 'a "b"\n/c'}.__contains__),
    "grammar": ({"structured_outputs": {"grammar": SUM}}, is_sum),
}


@pytest.fixture(scope="module")
def tokenizer(tiny_llama):
    return Tokenizer(tiny_llama)


@pytest.fixture(scope="module")
def read(tokenizer):
    """Request fields to the grammar that the engine gets."""
    reader = GrammarReader(tokenizer, ModelCard("tiny", 256, 259, frozenset([EOS]), created=1))
    return lambda fields: asyncio.run(reader.read(CompletionRequest(**{"prompt": "x", **fields})))


def params(grammar, **changes):
    fields = {"max_tokens": 200, "temperature": 1.0, "stop_token_ids": frozenset([EOS]), "grammar": grammar}
    return SamplingParams(**{**fields, **changes})


def engine_for(folder, **changes):
    return OfflineEngine(build_model(GeneratorSettings(model=str(folder), kv_cache_memory_bytes=2**24, **changes)))


def check_all(outputs, kinds, tokenizer):
    """Every output that ended by itself is valid; answers how many did."""
    num_ended = 0
    for output, kind in zip(outputs, kinds, strict=True):
        if kind is not None and output[-1] == EOS:
            num_ended += 1
            text = tokenizer.decode(output[:-1])
            assert MODES[kind][1](text), (kind, text)
    return num_ended


def test_whatever_is_drawn_is_valid_and_free_rows_are_as_without_company(tiny_llama, tokenizer, read):
    engine = engine_for(tiny_llama)
    kinds = [kind for kind in (*MODES, None) for _ in range(4)]
    each = [
        params(None if kind is None else read(MODES[kind][0]), seed=seed, max_tokens=40 if kind is None else 200)
        for seed, kind in enumerate(kinds)
    ]
    prompts = [[seed % 256, 7, 9] for seed in range(len(kinds))]
    outputs = engine.generate(prompts, each=each)
    assert check_all(outputs, kinds, tokenizer) >= 20  # of 24: a sum may go on for long
    alone = engine.generate(prompts[-4:], each=each[-4:])
    assert outputs[-4:] == alone


def test_preemption_in_a_tiny_pool_keeps_answers_valid(tiny_llama, tokenizer, read):
    kinds = ["json", "regex", "json", "json", None, "json"]
    each = [
        params(None if kind is None else read(MODES[kind][0]), seed=seed, max_tokens=90)
        for seed, kind in enumerate(kinds)
    ]
    prompts = [[seed, 7, 9] for seed in range(len(kinds))]
    roomy = engine_for(tiny_llama)
    tiny = engine_for(tiny_llama, max_model_len=100, block_size=4, num_gpu_blocks_override=25)
    outputs = tiny.generate(prompts, each=each)
    assert tiny.stats().num_preemptions > 0
    assert check_all(outputs, kinds, tokenizer) >= 3  # a random model may put any number of spaces between tokens
    assert outputs == roomy.generate(prompts, each=each)


def test_the_end_of_a_grammar_forces_the_end_token(tiny_llama, read, tokenizer):
    engine = engine_for(tiny_llama)
    grammar = read({"structured_outputs": {"regex": "abc"}})
    (output,) = engine.generate([[1, 2]], each=[params(grammar, logit_bias={EOS: -100.0, 5: 100.0})])
    assert output == [*tokenizer.encode("abc"), EOS]


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_real_loop_gives_the_same_tokens_however_many_steps_are_in_flight(tiny_llama, read, max_in_flight):
    built = build_model(GeneratorSettings(model=str(tiny_llama), kv_cache_memory_bytes=2**24))
    outputs, ends = {}, {}

    def on_event(_frontend_id, event):
        assert isinstance(event, StepEvents)
        for item in event.tokens:
            outputs.setdefault(item.request_id, []).extend(item.token_ids)
            if item.finish_reason is not None:
                assert item.request_id not in ends
                ends[item.request_id] = item.finish_reason

    transport = InMemoryTransport(on_event)
    loop = EngineLoop(built.scheduler, built.runner, transport, built.ready, max_in_flight=max_in_flight)
    grammars = [None, read(MODES["json"][0]), None, read(MODES["choice"][0]), read(MODES["grammar"][0]), None]
    each = [params(grammar, temperature=0.0, max_tokens=30 + index) for index, grammar in enumerate(grammars)]
    prompts = [[index, 7, 9] * (index + 1) for index in range(len(each))]
    for index, (prompt, sampling) in enumerate(zip(prompts, each, strict=True)):
        transport.put("f", Submit([Request("f", index, prompt, sampling)]))
    for frontend_id, command in transport.receive(0):
        loop._obey(frontend_id, command)
    while built.scheduler.has_work:
        loop.step()
        built.scheduler.check_integrity()
    assert set(ends.values()) <= {FinishReason.STOP, FinishReason.LENGTH}
    alone = engine_for(tiny_llama)
    expected = [alone.generate([prompt], each=[sampling])[0] for prompt, sampling in zip(prompts, each, strict=True)]
    assert [outputs[index] for index in range(len(each))] == expected


def test_ids_that_only_the_model_knows_are_never_chosen(tmp_path, read):
    """The tokenizer has 259 ids, the model 300; `<[*]>` is any token at all."""
    engine = engine_for(save_tiny_llama(tmp_path, vocab_size=300))
    sampling = params("start: <[*]>{60}", max_tokens=50, logit_bias=dict.fromkeys(range(259, 300), 100.0))
    (output,) = engine.generate([[1, 2]], each=[sampling])
    assert all(token_id < 259 for token_id in output)


def test_a_model_without_an_end_token_has_no_grammars(tokenizer):
    with pytest.raises(GrammarsUnsupportedError, match="no end token"):
        make_grammar_tokenizer(tokenizer, [])


def test_several_end_tokens_are_all_possible_ends(tokenizer):
    matcher = compile_grammar(make_grammar_tokenizer(tokenizer, [256, EOS]), 'start: "a"?')
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    allowed = {token_id for token_id in range(259) if mask >> token_id & 1}
    assert allowed == {256, EOS, *tokenizer.encode("a")}
