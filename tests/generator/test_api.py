"""The generator's HTTP API over a scripted engine: shapes to the byte, defaults, and every kind of bad input."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.generator.api.adapters import adapters_router
from services.generator.api.chat import chat_router
from services.generator.api.completions import completions_router
from services.generator.api.models import models_router
from services.generator.api.service import GeneratorService
from services.generator.core.request import FinishReason
from services.generator.frontend.chat_template_files import load_chat_template
from services.generator.frontend.model_card import ModelCard
from services.generator.frontend.prompts import PromptPreparer
from services.generator.frontend.sampling import SamplingReader
from services.generator.frontend.structured import GrammarReader
from services.generator.metrics import GeneratorMetrics
from services.generator.settings import GeneratorSettings
from shared.errors import EngineDeadError, OverloadedError
from shared.http.app import Readiness, make_app
from shared.http.lifecycle import Lifecycle
from shared.text.tokenizer import Tokenizer
from tests.fakes.fake_engine import FakeEngine

MAX_LEN = 64
EOS = 257


def spell(text):
    """One event per byte of `text`, for the tiny model's byte tokenizer."""

    def answer(tokenizer):
        return [[token_id] for token_id in tokenizer.encode(text, add_special_tokens=False)]

    return answer


class Api:
    """An application over a fake engine, with raw and typed clients."""

    def __init__(self, folder, max_model_len=MAX_LEN, defaults=None, images=None, **service_options):
        self.tokenizer = Tokenizer(folder)
        self.script = lambda prompt, sampling: [*spell("ok")(self.tokenizer), [EOS], FinishReason.STOP]
        self.engine = FakeEngine(lambda prompt, sampling: self.script(prompt, sampling))
        vocab_size = self.tokenizer.vocab_size
        card = ModelCard(
            "tiny", max_model_len, vocab_size, frozenset([EOS]), created=1, takes_images=images is not None
        )
        metrics = GeneratorMetrics()
        prompts = PromptPreparer(self.tokenizer, load_chat_template(folder), card, images)
        sampling = SamplingReader(self.tokenizer, card, defaults)
        grammars = GrammarReader(self.tokenizer, card)
        service = GeneratorService(
            card, self.tokenizer, prompts, sampling, grammars, self.engine, metrics, **service_options
        )

        @asynccontextmanager
        async def lifespan(_app):
            yield

        self.app = make_app(
            GeneratorSettings(model=str(folder), max_body_bytes=20_000),
            Lifecycle(),
            metrics.all,
            readiness=lambda: Readiness(ready=True, parts={}),
            lifespan=lifespan,
            routers=[
                completions_router(service),
                chat_router(service),
                models_router(service),
                adapters_router(self.engine, allows_changes=False),
            ],
        )

    def says(self, text, reason=FinishReason.LENGTH):
        self.script = lambda prompt, sampling: [*spell(text)(self.tokenizer), reason]

    def http(self):
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    def post(self, path, body, **kwargs):
        async def send():
            async with self.http() as client:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                headers = {"content-type": "application/json", **kwargs.pop("headers", {})}
                return await client.post(path, content=content, headers=headers, **kwargs)

        return asyncio.run(send())

    def events(self, path, body):
        """Payloads of a stream, [DONE] checked and dropped; the framing is checked to the byte."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        blocks = response.text.split("\n\n")
        assert blocks[-2:] == ["data: [DONE]", ""]
        assert all(block.startswith("data: ") for block in blocks[:-1])
        return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


@pytest.fixture
def api(tiny_llama):
    return Api(tiny_llama)


NO_HITS = {"prompt_tokens_details": {"cached_tokens": 0}}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}
TEXT_PART = {"type": "text", "text": "a"}


# --- shapes ---


def test_completion(api):
    api.says("abc")
    body = api.post("/v1/completions", COMPLETION).json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, **NO_HITS},
    }
    prompt, sampling = api.engine.submitted[0]
    assert api.tokenizer.decode(prompt) == "hi"
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (16, 1.0, 1.0, 0)
    assert sampling.stop_token_ids == {EOS}


def test_chat_renders_the_template_and_leaves_the_end_token_out_of_the_text(api):
    body = api.post("/v1/chat/completions", CHAT).json()
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ok"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {"prompt_tokens": 19, "completion_tokens": 3, "total_tokens": 22, **NO_HITS}
    prompt, sampling = api.engine.submitted[0]
    assert api.tokenizer.decode(prompt) == "user: hi\nassistant:"
    assert sampling.max_tokens == MAX_LEN - 19  # all that is left of the context


def test_content_parts_are_joined_and_developer_is_system(api):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "c"}, {"role": "user", "content": parts}]
    api.post("/v1/chat/completions", {"messages": messages})
    assert api.tokenizer.decode(api.engine.submitted[0][0]) == "system: c\nuser: ab\nassistant:"


def test_chat_stream(api):
    chunks = api.events("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    choices = [c["choices"][0] for c in chunks[:-1]]
    assert [c["delta"] for c in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "o"},
        {"content": "k"},
        {},
    ]
    assert [c["finish_reason"] for c in choices] == [None, None, None, "stop"]
    assert all(c["usage"] is None for c in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 19, "completion_tokens": 3, "total_tokens": 22, **NO_HITS}


def test_a_stream_without_the_option_carries_no_usage(api):
    for options in ({}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        chunks = api.events("/v1/completions", {**COMPLETION, **options})
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)


def test_completion_stream_has_no_leading_empty_chunk(api):
    api.says("xy")
    chunks = api.events("/v1/completions", COMPLETION)
    assert [c["choices"][0]["text"] for c in chunks] == ["x", "y", ""]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, "length"]


def test_several_prompts_and_choices_have_their_own_index(api):
    api.script = lambda prompt, sampling: [[prompt[-1]], [48 + sampling.seed % 10], FinishReason.LENGTH]
    body = api.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "seed": 3}).json()
    texts = [api.tokenizer.decode([p[-1], 48 + s.seed % 10]) for p, s in api.engine.submitted]
    assert [c["text"] for c in body["choices"]] == texts
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert [s.seed for _, s in api.engine.submitted] == [3, 4, 3, 4]
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10, **NO_HITS}


def test_interleaved_stream_gives_each_choice_one_end(api):
    api.says("abc")
    chunks = api.events("/v1/completions", {**COMPLETION, "n": 3})
    texts, ends = {}, []
    for choice in (c["choices"][0] for c in chunks):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        ends += [choice["index"]] * (choice["finish_reason"] is not None)
    assert texts == {0: "abc", 1: "abc", 2: "abc"}
    assert sorted(ends) == [0, 1, 2]


def test_token_ids_as_prompts(api):
    api.post("/v1/completions", {"prompt": [1, 2, 3]})
    api.post("/v1/completions", {"prompt": [[1, 2], [3]]})
    assert [p for p, _ in api.engine.submitted] == [[1, 2, 3], [1, 2], [3]]


def test_stop_string_ends_the_choice_aborts_the_engine_and_counts_its_tokens(api):
    api.says("hello END never seen")
    body = api.post("/v1/completions", {**COMPLETION, "stop": ["END", "zzz"]}).json()
    assert body["choices"][0]["text"] == "hello "
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["stop_reason"]) == ("stop", "END")
    assert body["usage"]["completion_tokens"] == len("hello END")
    assert api.engine.aborted == [0]


def test_a_streamed_partial_stop_string_is_never_shown(api):
    api.says("abENabEND")
    chunks = api.events("/v1/completions", {**COMPLETION, "stop": "END"})
    assert [c["choices"][0]["text"] for c in chunks] == ["a", "b", "ENa", "b", ""]


def test_a_held_back_beginning_is_flushed_at_the_end(api):
    api.says("abEN")
    body = api.post("/v1/completions", {**COMPLETION, "stop": "END"}).json()
    assert body["choices"][0]["text"] == "abEN"


def test_emoji_are_streamed_whole(api):
    api.says("é👩‍👩‍👧")
    chunks = api.events("/v1/completions", COMPLETION)
    texts = [c["choices"][0]["text"] for c in chunks]
    assert "".join(texts) == "é👩‍👩‍👧"
    assert not any("�" in text for text in texts)


def test_typed_client_reads_every_mode(api):
    async def use():
        client = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=None)
        client._client = api.http()
        client._client.base_url = "http://test/v1/"
        models = await client.models.list()
        chat = await client.chat.completions.create(model="tiny", messages=CHAT["messages"])
        stream = await client.chat.completions.create(model="tiny", messages=CHAT["messages"], stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        completion = await client.completions.create(model="tiny", prompt="hi")
        with pytest.raises(openai.NotFoundError) as error:
            await client.completions.create(model="other", prompt="hi")
        return models.data[0].id, chat.choices[0].message.content, text, completion.choices[0].text, error.value

    model, chat, streamed, completion, error = asyncio.run(use())
    assert (model, chat, streamed, completion) == ("tiny", "ok", "ok", "ok")
    assert (error.code, error.param) == ("model_not_found", "model")


def test_cached_tokens_count_once_per_prompt_and_the_salt_reaches_the_engine(api):
    api.engine.num_cached_tokens = 1
    body = api.post("/v1/completions", {"prompt": ["ab", "cd"], "n": 3, "cache_salt": "tenant"}).json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert api.engine.salts == ["tenant"] * 6


# --- sampling fields ---


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 1e-9}, {"temperature": 0.0}),
        ({"temperature": None, "top_p": None, "top_k": None, "seed": 5}, {"temperature": 1.0, "top_p": 1.0, "seed": 5}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 40, "top_p": 0.5, "temperature": 0.7}, {"top_k": 40, "top_p": 0.5, "temperature": 0.7}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"seed": 2**63 - 1}, {"seed": 2**63 - 1}),
        ({"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "user": "u"}, {"max_tokens": 16}),
    ],
)
def test_fields_reach_the_engine(api, fields, expected):
    assert api.post("/v1/completions", {**COMPLETION, **fields}).status_code == 200
    sampling = api.engine.submitted[0][1]
    assert {name: getattr(sampling, name) for name in expected} == expected


def test_the_last_seed_wraps_around(api):
    api.post("/v1/completions", {**COMPLETION, "seed": 2**63 - 1, "n": 2})
    assert [s.seed for _, s in api.engine.submitted] == [2**63 - 1, -(2**63)]


def test_requests_without_a_seed_differ(api):
    for _ in range(2):
        api.post("/v1/completions", COMPLETION)
    first, second = (s.seed for _, s in api.engine.submitted)
    assert first != second


def test_max_completion_tokens_wins(api):
    api.post("/v1/chat/completions", {**CHAT, "max_tokens": 9, "max_completion_tokens": 4})
    assert api.engine.submitted[0][1].max_tokens == 4


# --- bad input ---

BAD = [
    ("/v1/completions", {}, "prompt"),
    ("/v1/completions", {"prompt": ""}, "prompt"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": [""]}, "prompt"),
    ("/v1/completions", {"prompt": [[]]}, "prompt"),
    ("/v1/completions", {"prompt": None}, "prompt"),
    ("/v1/completions", {"prompt": 3}, "prompt"),
    ("/v1/completions", {"prompt": ["a", 3]}, "prompt"),
    ("/v1/completions", {"prompt": [True]}, "prompt"),
    ("/v1/completions", {"prompt": [259]}, "prompt"),
    ("/v1/completions", {"prompt": [-1]}, "prompt"),
    ("/v1/completions", {"prompt": [2**31]}, "prompt"),
    ("/v1/completions", {"prompt": ["a"] * 257}, "prompt"),
    ("/v1/completions", {"prompt": "x" * MAX_LEN}, "prompt"),
    ("/v1/completions", {"prompt": "x" * 9000}, "prompt"),
    ("/v1/completions", {**COMPLETION, "max_tokens": 0}, "max_tokens"),
    ("/v1/completions", {**COMPLETION, "min_tokens": 5, "max_tokens": 2}, "min_tokens"),
    ("/v1/completions", {**COMPLETION, "bad_words": ["x" * 1000]}, "bad_words"),
    ("/v1/completions", {**COMPLETION, "repetition_penalty": 1e-300}, "repetition_penalty"),
    ("/v1/completions", {**COMPLETION, "foo-bar": 1}, "foo-bar"),
    ("/v1/completions", {**COMPLETION, "int": 1}, "int"),
    ("/v1/completions", {**COMPLETION, "m" * 15_000: 1}, "m" * 200),
    ("/v1/completions", {**COMPLETION, "model": "m" * 15_000}, "model"),
    ("/v1/completions", {**COMPLETION, "max_tokens": -5}, "max_tokens"),
    ("/v1/completions", {**COMPLETION, "max_tokens": MAX_LEN}, "max_tokens"),
    ("/v1/completions", {**COMPLETION, "max_tokens": 10**30}, "max_tokens"),
    ("/v1/completions", {**COMPLETION, "max_tokens": True}, "max_tokens"),
    ("/v1/completions", {**COMPLETION, "max_tokens": "3"}, "max_tokens"),
    ("/v1/completions", {**COMPLETION, "max_tokens": 3.5}, "max_tokens"),
    ("/v1/completions", {**COMPLETION, "temperature": -0.1}, "temperature"),
    ("/v1/completions", {**COMPLETION, "temperature": 2.1}, "temperature"),
    ("/v1/completions", {**COMPLETION, "temperature": "hot"}, "temperature"),
    ("/v1/completions", {**COMPLETION, "temperature": float("nan")}, "temperature"),
    ("/v1/completions", {**COMPLETION, "temperature": float("inf")}, "temperature"),
    ("/v1/completions", {**COMPLETION, "top_p": 0}, "top_p"),
    ("/v1/completions", {**COMPLETION, "top_p": 1.01}, "top_p"),
    ("/v1/completions", {**COMPLETION, "top_k": -2}, "top_k"),
    ("/v1/completions", {**COMPLETION, "n": 0}, "n"),
    ("/v1/completions", {**COMPLETION, "n": 100_000}, "n"),
    ("/v1/completions", {**COMPLETION, "seed": 2**63}, "seed"),
    ("/v1/completions", {**COMPLETION, "stop": ""}, "stop"),
    ("/v1/completions", {**COMPLETION, "stop": ["a", ""]}, "stop"),
    ("/v1/completions", {**COMPLETION, "stop": ["a"] * 17}, "stop"),
    ("/v1/completions", {**COMPLETION, "stream": "yes"}, "stream"),
    ("/v1/completions", {**COMPLETION, "logprobs": 21}, "logprobs"),
    ("/v1/completions", {**COMPLETION, "logprobs": True}, "logprobs"),
    ("/v1/completions", {**COMPLETION, "echo": "yes"}, "echo"),
    ("/v1/completions", {**COMPLETION, "suffix": "x"}, "suffix"),
    ("/v1/completions", {**COMPLETION, "best_of": 2}, "best_of"),
    ("/v1/completions", {**COMPLETION, "frequency_penalty": 2.5}, "frequency_penalty"),
    ("/v1/completions", {**COMPLETION, "presence_penalty": -3}, "presence_penalty"),
    ("/v1/completions", {**COMPLETION, "repetition_penalty": 0}, "repetition_penalty"),
    ("/v1/completions", {**COMPLETION, "min_p": 1.5}, "min_p"),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"259": 1}}, "logit_bias"),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"x": 1}}, "logit_bias"),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"-1": 1}}, "logit_bias"),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"²": 1}}, "logit_bias"),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"01": 1}}, "logit_bias"),
    ("/v1/completions", {**COMPLETION, "allowed_token_ids": [EOS], "min_tokens": 2}, "min_tokens"),
    ("/v1/completions", {"prompt": ["a"] * 5, "n": 128}, "n"),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"5": 101}}, "logit_bias"),
    ("/v1/completions", {**COMPLETION, "logit_bias": [1]}, "logit_bias"),
    ("/v1/completions", {**COMPLETION, "allowed_token_ids": []}, "allowed_token_ids"),
    ("/v1/completions", {**COMPLETION, "allowed_token_ids": [259]}, "allowed_token_ids"),
    ("/v1/completions", {**COMPLETION, "stop_token_ids": [259]}, "stop_token_ids"),
    ("/v1/completions", {**COMPLETION, "stop_token_ids": list(range(100))}, "stop_token_ids"),
    ("/v1/completions", {**COMPLETION, "bad_words": [""]}, "bad_words"),
    ("/v1/completions", {**COMPLETION, "bad_words": ["far too long a word"]}, "bad_words"),
    ("/v1/completions", {**COMPLETION, "bad_words": ["a"] * 100}, "bad_words"),
    ("/v1/completions", {**COMPLETION, "min_tokens": -1}, "min_tokens"),
    ("/v1/completions", {**COMPLETION, "no_such_field": 1}, "no_such_field"),
    ("/v1/completions", {**COMPLETION, "slot": 1}, "slot"),
    ("/v1/completions", {**COMPLETION, "cache_salt": ""}, "cache_salt"),
    ("/v1/chat/completions", {}, "messages"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": "hi"}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages.0.content"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [TEXT_PART, {"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content.1",
    ),
    *(
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [TEXT_PART, part]}]},
            f"messages.0.content.1{at}",
        )
        for part, at in [
            ("a", ".type"),
            ({"type": "file", "file": {}}, ".type"),
            ({"type": ["text"]}, ".type"),
            ({"type": "text", "text": 1}, ".text"),
            ({"type": "image_url", "image_url": "x"}, ".image_url"),
            ({"type": "image_url", "image_url": {"url": ""}}, ".image_url.url"),
            ({"type": "image_url", "image_url": {"url": "x", "detail": "more"}}, ".image_url.detail"),
            ({"type": "image_url", "image_url": {"url": "x"}, "uuid": "x"}, ".uuid"),
        ]
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content",
    ),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
    ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 0}, "max_completion_tokens"),
    ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 60}, "max_completion_tokens"),
    ("/v1/chat/completions", {**CHAT, "logprobs": 1}, "logprobs"),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("/v1/chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs"),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, "tools"),
    ("/v1/chat/completions", {**CHAT, "tool_choice": "auto"}, "tool_choice"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": CHAT["messages"]}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/detokenize", {"tokens": [300]}, "tokens"),
    ("/detokenize", {"tokens": "abc"}, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "param"), BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_a_400_that_names_the_field_and_the_next_request_works(api, path, body, param, stream):
    if stream and path.startswith("/v1"):
        body = {"stream": True, **body}
    response = api.post(path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["code"] in ("invalid_request", "context_length_exceeded")
    if param is not None:
        assert error["param"] is not None
        assert error["param"] == param or error["param"].startswith(f"{param}.")
    assert response.json()["message"] == error["message"]
    assert api.post("/v1/completions", COMPLETION).status_code == 200


def test_stream_options_without_a_stream(api):
    response = api.post("/v1/completions", {**COMPLETION, "stream_options": {"include_usage": True}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stream_options")


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 10_000, b'{"prompt": }']
)
def test_a_body_that_is_not_the_right_json(api, raw):
    response = api.post("/v1/completions", raw)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"


def test_unknown_model_is_404_on_every_path(api):
    for path, body in (
        ("/v1/completions", COMPLETION),
        ("/v1/chat/completions", CHAT),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        response = api.post(path, {**body, "model": "other"})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert response.json()["error"]["param"] == "model"


def test_over_long_requests_carry_the_openai_code_and_all_counts(api):
    error = api.post("/v1/completions", {"prompt": "abc", "max_tokens": 62}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("64", "3", "62"))


def test_a_large_body_is_413(api):
    assert api.post("/v1/completions", {"prompt": "x" * 30_000}).status_code == 413


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("prompt", [-1], "greater than or equal to 0"),
        ("stop", ["x"] * 17, "at most 16"),
        ("bad_words", ["far too long a word"], "tokens in a word"),
        ("tools", [{}], "leave it out"),
    ],
)
def test_the_message_tells_what_is_wrong_with_the_value(api, field, value, said):
    path = "/v1/chat/completions" if field == "tools" else "/v1/completions"
    body = {**(CHAT if field == "tools" else COMPLETION), field: value}
    message = api.post(path, body).json()["error"]["message"]
    assert said in message
    assert not message.endswith("send ")


# --- trouble in the engine ---


def test_overload_is_a_429_before_any_stream_and_starts_nothing(api):
    api.engine.refusal, api.engine.refuse_after = OverloadedError("full", retry_after_s=3), 2
    response = api.post("/v1/completions", {**COMPLETION, "n": 4, "stream": True})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert api.engine.submitted == []


def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_event(api):
    api.script = lambda prompt, sampling: [*spell("a")(api.tokenizer), EngineDeadError("gone")]
    events = api.events("/v1/completions", COMPLETION)
    assert events[0]["choices"][0]["text"] == "a"
    assert events[-1]["error"]["code"] == "engine_dead"


def test_an_engine_that_dies_is_a_503_where_nothing_was_sent(api):
    api.script = lambda prompt, sampling: [*spell("a")(api.tokenizer), EngineDeadError("gone")]
    response = api.post("/v1/completions", {**COMPLETION, "n": 2})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_dead"
    assert api.engine.aborted == [0, 1]


def test_tokenize_and_detokenize(api):
    assert api.post("/tokenize", {"prompt": "hé"}).json() == {
        "tokens": api.tokenizer.encode("hé"),
        "count": 3,
        "max_model_len": MAX_LEN,
    }
    chat = api.post("/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": False}).json()
    assert api.post("/detokenize", {"tokens": chat["tokens"]}).json() == {"prompt": "user: hi\n"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "prompt",
    "messages",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "n",
    "stream",
    "model",
    "x",
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]),
    body=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5),
)
def test_random_json_is_answered_or_refused_but_never_a_500(api, path, body):
    assert api.post(path, body).status_code in (200, 400, 404)


def test_an_adapter_that_went_while_the_request_waited_is_told_by_the_field_that_named_it(api):
    api.script = lambda prompt, sampling: [FinishReason.NO_ADAPTER]
    response = api.post("/v1/completions", {"prompt": "hi"})
    assert (response.status_code, response.json()["error"]["param"]) == (404, "model")
