"""Conversations with images through chat templates of the two manners there are, against `transformers` on the same templates."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from services.generator.frontend.chat_template import ChatTemplate
from services.generator.frontend.chat_template_files import load_chat_template
from services.generator.frontend.conversation import template_messages
from shared.contracts.conversation import ChatMessage
from tests.fakes.image_files import image_part

PARTS_ONLY = (
    "{% for m in messages %}{{ m.role | upper }}: "
    "{% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part['text'] }} {% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
EITHER = (
    "{% set seen = namespace(images=0) %}{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if 'image' in part or part.type == 'image' %}"
    "{% set seen.images = seen.images + 1 %}{% if add_vision_id %}Picture {{ seen.images }}: {% endif %}<image>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
STRINGS_ONLY = "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}"
WRITES_ANYTHING = "{% for m in messages %}{{ m.content }}{% endfor %}"
TEXT, IMAGE = {"type": "text", "text": "what?"}, {"type": "image"}
TALKS = [
    [("user", [TEXT, IMAGE])],
    [("system", "Be brief."), ("user", [IMAGE, IMAGE, TEXT]), ("assistant", "A cat."), ("user", "Sure?")],
    [("user", [TEXT, TEXT]), ("assistant", [TEXT]), ("user", [TEXT, IMAGE, TEXT])],
    [("user", "hi"), ("assistant", "So I")],
]


def of_client(talk):
    """The talk as a client sends it."""

    def content_of(content):
        return content if isinstance(content, str) else [image_part() if part == IMAGE else part for part in content]

    return [ChatMessage.model_validate({"role": role, "content": content_of(content)}) for role, content in talk]


def of_reference(talk):
    """As the reference library's users write it: parts throughout."""
    as_parts = [(role, [{"type": "text", "text": said}] if isinstance(said, str) else said) for role, said in talk]
    return [{"role": role, "content": content} for role, content in as_parts]


@pytest.fixture(scope="module")
def reference(tiny_llama):
    return PreTrainedTokenizerFast(tokenizer_file=str(tiny_llama / "tokenizer.json"))


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("source", [PARTS_ONLY, EITHER])
@pytest.mark.parametrize("ending", ["add_generation_prompt", None])
def test_the_text_is_that_of_the_reference(reference, source, talk, ending):
    if talk[-1][0] == "assistant" and ending is None:
        ending = "continue_final_message"
    template = ChatTemplate(source, {})
    endings = {name: name == ending for name in ("add_generation_prompt", "continue_final_message")}
    messages = template_messages(of_client(talk), knows_tool_calls=False, reads_strings=template.reads_strings)
    expected = reference.apply_chat_template(of_reference(talk), chat_template=source, tokenize=False, **endings)
    assert template.render(messages, **endings) == expected


def test_variables_go_with_images(reference):
    talk = [("user", [IMAGE, TEXT, IMAGE])]
    expected = reference.apply_chat_template(
        of_reference(talk), chat_template=EITHER, tokenize=False, add_vision_id=True
    )
    messages = template_messages(of_client(talk), knows_tool_calls=False)
    variables = {"add_vision_id": True}
    assert ChatTemplate(EITHER, {}).render(messages, add_generation_prompt=False, variables=variables) == expected
    assert "Picture 2: " in expected


def test_tool_calls_that_a_template_of_parts_does_not_read_become_a_part():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = ChatMessage.model_validate({"role": "assistant", "content": "So:", "tool_calls": [call]})
    (plain,) = template_messages([message], knows_tool_calls=False, reads_strings=False)
    assert plain["content"] == [
        {"type": "text", "text": "So:"},
        {"type": "text", "text": '\n{"name": "f", "arguments": {}}'},
    ]


def test_an_empty_message_can_be_continued():
    talk = [{"role": "user", "content": [TEXT]}, {"role": "assistant", "content": []}]
    assert ChatTemplate(EITHER, {}).render(talk, continue_final_message=True) == "[user]what?[end][assistant]"


@pytest.mark.parametrize(
    ("source", "reads_strings"), [(PARTS_ONLY, False), (EITHER, True), (STRINGS_ONLY, True), (WRITES_ANYTHING, True)]
)
def test_whether_a_template_reads_strings_is_found_out(source, reads_strings):
    assert ChatTemplate(source, {}).reads_strings is reads_strings


def test_a_template_that_reads_nothing_or_refuses_gets_strings():
    assert ChatTemplate("x", {}).reads_strings
    assert ChatTemplate("{{ raise_exception('no') }}", {}).reads_strings


@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json", "tokenizer_config.json"])
def test_the_template_is_found_in_the_files_of_a_processor(tmp_path, name):
    (tmp_path / name).write_text(json.dumps({"chat_template": EITHER}))
    assert load_chat_template(tmp_path).render([{"role": "user", "content": "hi"}]) == "[user]hi[end][assistant]"


def test_a_processors_template_goes_before_the_tokenizers(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "text", "eos_token": "</s>"}))
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "images{{ eos_token }}"}))
    assert load_chat_template(tmp_path).render([]) == "images</s>"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_chat_template(tmp_path).render([]) == "file"
