"""The way from a conversation to the prompt's text: against `transformers` on the same templates, and what is refused by name."""

import json

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.generator.frontend.chat_template import ChatTemplate
from services.generator.frontend.chat_template_files import load_chat_template
from shared.errors import InvalidRequestError
from tests.generator.test_api import Api

PLAIN = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TRIMMING = PLAIN.replace("m.content", "m['content'] | trim")
WITH_TOOLS = """
{%- if tools is not none %}{{ raise_exception("no tools were given") }}{% endif %}
{%- if not day is defined %}
    {%- set day = "Monday" %}
{%- endif %}
{%- for message in messages %}
    {{- "[" + message.role + " " + day + "]" }}
    {%- if message.role == "assistant" %}{% generation %}{{ message.content }}{% endgeneration %}
    {%- elif message.role == "tool" %}{{ message.tool_call_id + "=" + message.content }}
    {%- else %}{{ message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {%- if call.function is defined %}{% set call = call.function %}{% endif %}
        {{- "(" + call.name + ")" + call.arguments | tojson }}
    {%- endfor %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "[assistant]" }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ "<no thoughts>" }}{% endif %}
{%- endif %}
"""
CALL = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": '{"city": "Bern", "exact": true}'}}
HISTORY = [
    {"role": "user", "content": "How late is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {
        "role": "tool",
        "tool_call_id": "c1",
        "content": [{"type": "text", "text": "ten past"}, {"type": "text", "text": " two"}],
    },
]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " hi "},
    {"role": "assistant", "content": "So im"},
]


@pytest.fixture(scope="module")
def reference(tiny_llama):
    """The reference library's renderer over the same tokenizer."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tiny_llama / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )

    def render(template, messages, **options):
        return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)

    return render


def ours(template):
    return ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("template", [PLAIN, TRIMMING, WITH_TOOLS])
@pytest.mark.parametrize(
    "ending", [{"add_generation_prompt": True}, {"add_generation_prompt": False}, {"continue_final_message": True}]
)
def test_text_equals_the_references(reference, template, ending):
    expected = reference(template, TALK, **ending)
    assert ours(template).render(TALK, **ending) == expected


@pytest.mark.models
@pytest.mark.parametrize("talk", [TALK, TALK[1:]])
@pytest.mark.parametrize(
    "ending", [{"add_generation_prompt": True}, {"add_generation_prompt": False}, {"continue_final_message": True}]
)
def test_the_embedded_models_template(models_dir, talk, ending):
    folder = models_dir / "smollm2-135m-instruct"
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(talk, tokenize=False, **ending)
    assert load_chat_template(folder).render(talk, **ending) == expected


def test_variables_reach_the_template_as_in_the_reference(reference):
    variables = {"enable_thinking": False, "day": "Friday"}
    expected = reference(WITH_TOOLS, TALK, add_generation_prompt=True, **variables)
    assert "<no thoughts>" in expected
    assert ours(WITH_TOOLS).render(TALK, variables=variables) == expected
    assert ours(WITH_TOOLS).variables == {"enable_thinking", "day"}


def test_a_continued_message_keeps_its_last_blank():
    talk = [*TALK[:2], {"role": "assistant", "content": " Well, "}]
    assert ours(TRIMMING).render(talk, continue_final_message=True).endswith("<assistant>Well, ")


@pytest.mark.parametrize(
    "name", ["messages", "tools", "bos_token", "add_generation_prompt", "raise_exception", "range", "foo"]
)
def test_other_variables_are_refused_by_name(name):
    with pytest.raises(InvalidRequestError) as error:
        ours(WITH_TOOLS).render(TALK, variables={name: 1})
    assert error.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content.missing }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_whatever_a_template_raises_is_a_400(template):
    with pytest.raises(InvalidRequestError):
        ours(template).render(TALK)


def test_the_default_of_several_templates_is_taken(tmp_path):
    templates = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert load_chat_template(tmp_path).render(TALK) == "y"


# --- through the API ---


def with_template(folder, template, tmp_path_factory):
    """An application whose model has `template`."""
    other = tmp_path_factory.mktemp("templated")
    for file in folder.iterdir():
        (other / file.name).symlink_to(file)
    (other / "chat_template.jinja").unlink()
    (other / "chat_template.jinja").write_text(template)
    (other / "tokenizer_config.json").unlink(missing_ok=True)
    (other / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    return Api(other, max_model_len=256)


@pytest.fixture
def api(tiny_llama, tmp_path_factory):
    return with_template(tiny_llama, WITH_TOOLS, tmp_path_factory)


def prompt_of(api, **body):
    response = api.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    tokens = api.post("/tokenize", {**body, "add_special_tokens": False}).json()["tokens"]
    assert tokens == api.engine.submitted[-1][0]
    return api.tokenizer.decode(api.engine.submitted[-1][0])


def test_tool_calls_and_their_answers_reach_the_template(api, reference):
    call = {**CALL, "function": {"name": "time", "arguments": {"city": "Bern", "exact": True}}}
    plain = [HISTORY[0], {**HISTORY[1], "content": "", "tool_calls": [call]}, {**HISTORY[2], "content": "ten past two"}]
    assert prompt_of(api, messages=HISTORY) == reference(WITH_TOOLS, plain, add_generation_prompt=True)


def test_a_template_without_tool_calls_gets_them_as_text(tiny_llama, tmp_path_factory):
    api = with_template(tiny_llama, PLAIN, tmp_path_factory)
    prompt = prompt_of(api, messages=[HISTORY[0], {**HISTORY[1], "content": "Let me see."}, HISTORY[2]])
    call = '{"name": "time", "arguments": {"city": "Bern", "exact": true}}'
    assert f"<assistant>Let me see.\n{call}</assistant>\n<tool>ten past two</tool>" in prompt


def test_template_fields(api):
    assert prompt_of(api, messages=TALK[:2]).endswith("[assistant]")
    assert prompt_of(api, messages=TALK[:2], add_generation_prompt=False).endswith(" hi </s>")
    assert prompt_of(api, messages=TALK, continue_final_message=True).endswith("]So im")
    assert prompt_of(api, messages=TALK[:2], chat_template_kwargs={"enable_thinking": False}).endswith("<no thoughts>")


def test_an_answer_can_be_sent_back_with_all_its_nulls(api):
    nulls = dict.fromkeys(["refusal", "annotations", "audio", "function_call", "tool_calls", "name"])
    assert prompt_of(api, messages=[{**TALK[2], **nulls}, TALK[1]]) == prompt_of(api, messages=[TALK[2], TALK[1]])


def assistant(**fields):
    return {"messages": [TALK[1], {"role": "assistant", "content": "x", **fields}]}


def called(**function):
    return assistant(tool_calls=[{**CALL, "function": {**CALL["function"], **function}}])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": TALK, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"messages": TALK[:2], "continue_final_message": True}, "continue_final_message"),
        ({"messages": HISTORY[:2], "continue_final_message": True}, "continue_final_message"),
        ({"messages": TALK, "chat_template_kwargs": {"foo": 1}}, "chat_template_kwargs.foo"),
        ({"messages": TALK, "chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"messages": TALK, "chat_template_kwargs": {"day": 5}}, "messages"),
        (assistant(content=None), "messages.1.content"),
        (assistant(content=None, tool_calls=[]), "messages.1.content"),
        (assistant(role="user", tool_calls=[CALL]), "messages.1.tool_calls"),
        (assistant(role="tool"), "messages.1.tool_call_id"),
        (assistant(tool_call_id="c1"), "messages.1.tool_call_id"),
        (assistant(function_call={"name": "f", "arguments": "{}"}), "messages.1.function_call"),
        (assistant(refusal="No."), "messages.1.refusal"),
        (assistant(audio={"id": "a"}), "messages.1.audio"),
        (assistant(role="function", name="f"), "messages.1.role"),
        (assistant(tool_calls=[{"id": "c1", "type": "function"}]), "messages.1.tool_calls.0.function"),
        (assistant(tool_calls=[{**CALL, "type": "custom"}]), "messages.1.tool_calls.0.type"),
        (called(arguments="{"), "messages.1.tool_calls.0.function.arguments"),
        (called(arguments="[1]"), "messages.1.tool_calls.0.function.arguments"),
        (called(arguments='{"x": NaN}'), "messages.1.tool_calls.0.function.arguments"),
        (called(arguments='{"x": 1e999}'), "messages.1.tool_calls.0.function.arguments"),
        (called(arguments='{"x":' + "[" * 5000), "messages.1.tool_calls.0.function.arguments"),
        (called(arguments={"city": "Bern"}), "messages.1.tool_calls.0.function.arguments"),
        (called(name=""), "messages.1.tool_calls.0.function.name"),
    ],
)
def test_contradictions_and_bad_history_are_refused_by_name(api, body, param):
    for path in ("/v1/chat/completions", "/tokenize"):
        response = api.post(path, body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


@pytest.mark.parametrize("field", ["add_generation_prompt", "continue_final_message", "chat_template_kwargs"])
def test_template_fields_without_messages_are_refused(api, field):
    value = {} if field == "chat_template_kwargs" else True
    response = api.post("/tokenize", {"prompt": "a", field: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
