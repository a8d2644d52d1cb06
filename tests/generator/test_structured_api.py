"""The fields of structured output over the API: what reaches the engine, and every way to get them wrong."""

import subprocess
import sys
import threading

import pytest

from services.generator.core.grammar import grammar_threads
from services.generator.core.request import FinishReason
from services.generator.frontend import structured
from services.generator.frontend.structured import MAX_GRAMMAR_CHARS
from tests.generator.test_api import CHAT, COMPLETION, MAX_LEN, Api

OBJECT = {"type": "object"}


@pytest.fixture
def api(tiny_llama):
    return Api(tiny_llama)


def of_format(schema, **changes):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **changes}}}


def of_kind(**kind):
    return {"structured_outputs": kind}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        of_format(OBJECT),
        of_format(OBJECT, strict=True, description="d"),
        of_format(OBJECT, strict=False),
        of_kind(json=OBJECT),
        of_kind(json='{"type": "object"}'),
        of_kind(regex="a+"),
        of_kind(choice=["a", "b"]),
        of_kind(grammar='start: "a"'),
    ],
)
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_every_form_reaches_the_engine_with_its_end_token(api, fields, path, body):
    response = api.post(path, {**body, **fields, "n": 2, "stop": "zz"})
    assert response.status_code == 200, response.text
    first, second = (sampling for _, sampling in api.engine.submitted)
    assert first.grammar
    assert first.grammar == second.grammar
    assert first.stop_token_ids == {257}


@pytest.mark.parametrize("fields", [{"response_format": {"type": "text"}}, {"response_format": None}, {}])
def test_text_is_no_restriction(api, fields):
    assert api.post("/v1/completions", {**COMPLETION, **fields, "ignore_eos": True}).status_code == 200
    assert api.engine.submitted[0][1].grammar is None


TOO_COMPLEX = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(40)) + 'A40: "x"'
SCHEMA = "response_format.json_schema.schema"
BAD = [
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_object", "json_schema": {"name": "n", "schema": OBJECT}}}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "text", "more": 1}}, "response_format.more"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, SCHEMA),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": OBJECT}}},
        "response_format.json_schema.name",
    ),
    (of_format(OBJECT, more=1), "response_format.json_schema.more"),
    (of_format("object"), SCHEMA),
    (of_format({"type": "strin"}), SCHEMA),
    (of_format({"$ref": "#/nope"}), SCHEMA),
    (of_format({"unevaluatedItems": 3}), SCHEMA),
    (of_format({"type": "string", "pattern": "("}), SCHEMA),
    (of_format({"type": "integer", "multipleOf": 12_345_678}), SCHEMA),
    (of_format({"allOf": [{"multipleOf": 9973}, {"multipleOf": 99.67}]}), SCHEMA),
    (of_kind(), "structured_outputs"),
    (of_kind(regex="a", grammar='start: "a"'), "structured_outputs"),
    (of_kind(yaml="a"), "structured_outputs.yaml"),
    (of_kind(json="{"), "structured_outputs.json"),
    (of_kind(json="3"), "structured_outputs.json"),
    (of_kind(json=3), "structured_outputs.json"),
    (of_kind(json='{"const": 1e999}'), "structured_outputs.json"),
    (of_kind(json="[" * 10_000), "structured_outputs.json"),
    (of_kind(regex="(a"), "structured_outputs.regex"),
    (of_kind(regex="a(?=b)"), "structured_outputs.regex"),
    (of_kind(regex=""), "structured_outputs.regex"),
    (of_kind(regex="a{1000000000}"), "structured_outputs.regex"),
    (of_kind(choice=[]), "structured_outputs.choice"),
    (of_kind(choice=[""]), "structured_outputs.choice.0"),
    (of_kind(choice="a"), "structured_outputs.choice"),
    (of_kind(choice=["a"] * 1025), "structured_outputs.choice"),
    (of_kind(grammar="start: nothing"), "structured_outputs.grammar"),
    (of_kind(grammar=TOO_COMPLEX), "structured_outputs.grammar"),
    (of_kind(grammar="start: " + "(" * 10_000), "structured_outputs.grammar"),
    (of_kind(grammar='start: %json {"multipleOf": 12345678}'), "structured_outputs.grammar"),
    ({**of_kind(regex="a"), "response_format": {"type": "json_object"}}, "structured_outputs"),
    ({**of_kind(regex="a"), "ignore_eos": True}, "ignore_eos"),
    ({**of_kind(regex="a"), "min_tokens": 2}, "min_tokens"),
    ({**of_kind(regex="a"), "allowed_token_ids": [5]}, "allowed_token_ids"),
    ({**of_kind(regex="a"), "bad_words": ["b"]}, "bad_words"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_a_400_that_names_the_field(api, fields, param, stream):
    response = api.post("/v1/completions", {**COMPLETION, **fields, "stream": stream})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not api.engine.submitted


def test_the_message_is_that_of_the_compiler(api):
    response = api.post("/v1/completions", {**COMPLETION, **of_kind(regex="(a")})
    assert "unclosed group" in response.json()["error"]["message"]


def test_a_grammar_that_is_too_large_is_not_even_compiled(api, monkeypatch):
    monkeypatch.setattr(structured, "MAX_GRAMMAR_CHARS", 100)
    monkeypatch.setattr(structured, "_check", lambda tokens, grammar: "was compiled")
    for fields in (of_kind(regex="a" * 101), of_kind(choice=["a" * 99]), of_format({"const": "a" * 99})):
        error = api.post("/v1/completions", {**COMPLETION, **fields}).json()["error"]
        assert "100 at most" in error["message"]


def test_a_grammar_that_takes_too_long_is_a_400_and_others_are_told_to_come_again(api, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(structured, "COMPILE_S", 0.05)
    monkeypatch.setattr(structured, "_check", lambda tokens, grammar: release.wait(60) and "")
    try:
        for letter in "ab":
            response = api.post("/v1/completions", {**COMPLETION, **of_kind(regex=letter)})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "structured_outputs.regex")
            assert "to compile" in response.json()["error"]["message"]
        assert api.post("/v1/completions", {**COMPLETION, **of_kind(regex="c")}).status_code == 429
        assert api.post("/v1/completions", COMPLETION).status_code == 200
    finally:
        release.set()


def test_a_grammar_that_the_engine_gives_up_is_an_error_of_the_request(api):
    api.script = lambda prompt, sampling: [[5], FinishReason.ERROR]
    response = api.post("/v1/completions", {**COMPLETION, **of_kind(regex="a+")})
    assert response.status_code == 400
    assert "grammar" in response.json()["error"]["message"]


def test_a_stream_of_structured_output_is_a_stream_like_any(api):
    api.says('{"a":1}', FinishReason.LENGTH)
    events = api.events("/v1/completions", {**COMPLETION, **of_kind(json=OBJECT), "max_tokens": MAX_LEN - 10})
    assert "".join(event["choices"][0]["text"] for event in events) == '{"a":1}'
    assert events[-1]["choices"][0]["finish_reason"] == "length"


DEEP = """
import sys
from pathlib import Path
from llguidance import LLMatcher
from services.generator.core.grammar import compile_grammar, grammar_threads, make_grammar_tokenizer
from shared.text.tokenizer import Tokenizer
tokens = make_grammar_tokenizer(Tokenizer(Path(sys.argv[1])), [257])
rules = "start: a0\\n" + "".join(f"a{i}:a{i+1}\\n" for i in range(int(sys.argv[2]))) + "a" + sys.argv[2] + ': "x"'
grammar = LLMatcher.grammar_from_lark(rules)
print(len(rules), grammar_threads(1).submit(compile_grammar, tokens, grammar).result().is_error())
"""


def test_a_chain_of_rules_of_any_allowed_length_does_not_end_the_process(tiny_llama):
    """On an ordinary stack it does, which is why the threads have one of their own."""
    run = subprocess.run(
        [sys.executable, "-c", DEEP, str(tiny_llama), "2850"], capture_output=True, text=True, check=True
    )
    num_chars, is_error = run.stdout.split()
    assert MAX_GRAMMAR_CHARS * 0.9 < int(num_chars) <= MAX_GRAMMAR_CHARS
    assert is_error == "False"


def test_making_the_threads_leaves_the_stack_size_of_others_alone():
    before = threading.stack_size()
    grammar_threads(1)
    assert threading.stack_size() == before
