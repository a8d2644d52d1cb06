"""The `openai` package against the API on a real socket: its typed answers parse, strictly, for every endpoint and mode."""

from collections.abc import Iterator

import numpy as np
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.generator.core.messages import TokenLogprob
from services.generator.core.request import FinishReason
from services.generator.images.prepared_cache import PreparedCache
from services.generator.images.preparer import ImagePreparer, IntakeLimits
from tests.fakes.image_files import RGB, image_part, png
from tests.fakes.live_server import LiveServer
from tests.fakes.row_per_pixel import RowPerPixel
from tests.fakes.tiny_vision import IMAGE_TOKEN_ID, save_image_tokenizer
from tests.generator.test_api import EOS, Api

MESSAGES = [{"role": "user", "content": "hi"}]


def strictly(kind, answer):
    """`answer` itself, once its JSON is valid for the client's type: by itself the client takes whatever comes."""
    kind.model_validate_json(answer.model_dump_json(exclude_unset=True), strict=True)
    return answer


@pytest.fixture(scope="module")
def client(tiny_llama) -> Iterator[openai.OpenAI]:
    api = Api(tiny_llama)
    h, i = api.tokenizer.encode("hi")
    scores = TokenLogprob(-0.5, [(h, -0.5), (i, -1.0)]), TokenLogprob(-0.25, [(i, -0.25), (h, -2.0)])
    plain = [[h], [i], [EOS], FinishReason.STOP]
    scored = [([h], scores[0]), ([i], scores[1]), ([EOS], scores[1]), FinishReason.STOP]
    api.script = lambda prompt, sampling: plain if sampling.logprobs is None else scored
    with (
        LiveServer(api.app) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield client


def test_models(client):
    (model,) = client.models.list().data
    assert strictly(Model, model).id == "tiny"
    assert strictly(Model, client.models.retrieve("tiny")) == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("top_logprobs", [None, 0, 2])
def test_chat(client, n, top_logprobs):
    options = {} if top_logprobs is None else {"logprobs": True, "top_logprobs": top_logprobs}
    answer = strictly(ChatCompletion, client.chat.completions.create(model="tiny", messages=MESSAGES, n=n, **options))
    assert [choice.index for choice in answer.choices] == list(range(n))
    for choice in answer.choices:
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hi", "stop")
        if top_logprobs is None:
            assert choice.logprobs is None
        else:
            assert [entry.token for entry in choice.logprobs.content] == ["h", "i", "</s>"]
            assert [bytes(entry.bytes) for entry in choice.logprobs.content] == [b"h", b"i", b"</s>"]
            assert choice.logprobs.content[0].top_logprobs[0].logprob == -0.5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3 * n
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("logprobs", [False, True])
def test_chat_stream(client, n, logprobs):
    with client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        n=n,
        logprobs=logprobs,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = [strictly(ChatCompletionChunk, chunk) for chunk in stream]
    *pieces, last = chunks
    choices = [chunk.choices[0] for chunk in pieces]
    for index in range(n):
        own = [choice for choice in choices if choice.index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in own) == "hi"
        assert [choice.finish_reason for choice in own if choice.finish_reason] == ["stop"]
        scored = [entry.token for choice in own if choice.logprobs for entry in choice.logprobs.content]
        assert scored == (["h", "i", "</s>"] if logprobs else [])
    assert (last.choices, last.usage.completion_tokens) == ([], 3 * n)
    assert all(chunk.usage is None for chunk in pieces)


def test_the_clients_own_accumulator_reads_a_stream(client):
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, logprobs=True) as stream:
        stream.until_done()
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "hi"
    assert [entry.token for entry in answer.choices[0].logprobs.content] == ["h", "i", "</s>"]


@pytest.mark.parametrize("prompt", ["hi", ["hi", "ho"], [104, 105], [[104], [105, 106]]])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_completion(client, prompt, logprobs):
    options = {} if logprobs is None else {"logprobs": logprobs}
    answer = strictly(Completion, client.completions.create(model="tiny", prompt=prompt, n=2, **options))
    num_prompts = 2 if prompt in (["hi", "ho"], [[104], [105, 106]]) else 1
    assert [choice.index for choice in answer.choices] == list(range(2 * num_prompts))
    for choice in answer.choices:
        assert (choice.text, choice.finish_reason) == ("hi", "stop")
        assert (choice.logprobs is None) is (logprobs is None)
        if logprobs is not None:
            assert choice.logprobs.tokens == ["h", "i", "</s>"]
            assert choice.logprobs.token_logprobs == [-0.5, -0.25, -0.25]
            assert choice.logprobs.text_offset == [0, 1, 2]
            assert len(choice.logprobs.top_logprobs) == 3
    assert answer.usage.completion_tokens == 3 * 2 * num_prompts


@pytest.mark.parametrize("echo", [False, True])
def test_completion_stream(client, echo):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = client.completions.create(
        model="tiny", prompt="ab", n=2, logprobs=None if echo else 1, echo=echo, **options
    )
    *pieces, last = list(stream)
    for chunk in (*pieces, last):
        data = chunk.model_dump(exclude_unset=True)
        for choice in data["choices"]:
            choice["finish_reason"] = (
                choice["finish_reason"] or "stop"
            )  # null is sent by OpenAI too, whatever the type says
        Completion.model_validate(data, strict=True)
    for index in range(2):
        own = [chunk.choices[0] for chunk in pieces if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in own) == ("abhi" if echo else "hi")
        assert own[-1].finish_reason == "stop"
        assert [token for c in own if c.logprobs for token in c.logprobs.tokens] == ([] if echo else ["h", "i", "</s>"])
    assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens) == ([], 2, 6)


def test_an_answer_can_be_sent_back(client):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES).choices[0].message
    for sent in (answer, answer.model_dump(), {**answer.model_dump(exclude_unset=True), "name": "a"}):
        again = client.chat.completions.create(model="tiny", messages=[*MESSAGES, sent, *MESSAGES], max_tokens=5)
        assert again.choices[0].message.content == "hi"


def test_errors_have_the_clients_types_in_streams_too(client):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream, tools=[{"type": "function"}])
        assert (error.value.code, error.value.param, error.value.status_code) == ("invalid_request", "tools", 400)
    with pytest.raises(openai.InternalServerError) as late:
        client.completions.create(model="tiny", prompt="a", extra_headers={"X-Request-Deadline": "1000"})
    assert (late.value.code, late.value.status_code) == ("deadline_exceeded", 504)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory) -> Iterator[tuple[openai.OpenAI, Api]]:
    """A client of a model that takes images, and what is behind it."""
    folder = tmp_path_factory.mktemp("image-tokenizer")
    save_image_tokenizer(folder)
    api = Api(
        folder, images=ImagePreparer(RowPerPixel(IMAGE_TOKEN_ID), IntakeLimits(2, 2000, 400), PreparedCache(2**20))
    )
    api.engine.max_image_rows = 40
    with (
        LiveServer(api.app) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield client, api


def test_an_image(seeing):
    client, api = seeing
    image = image_part(png(np.full((2, 3, 3), (1, 2, 3)), colour_type=RGB))
    image["image_url"]["detail"] = "high"
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]
    answer = strictly(ChatCompletion, client.chat.completions.create(model="tiny", messages=messages))
    assert answer.choices[0].message.content == "ok"
    assert answer.usage.prompt_tokens == len("user: what?") + 6 + len("assistant:")
    ((sent,),) = api.engine.images
    assert (sent.position, sent.grid, sent.pixels.data) == (len("user: what?"), (1, 2, 3), bytes([1, 2, 3]) * 6)


@pytest.mark.parametrize("stream", [False, True])
def test_an_image_that_cannot_be_read_has_the_clients_error_before_a_stream_starts(seeing, stream):
    client, _ = seeing
    messages = [{"role": "user", "content": [image_part(b"hello")]}]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="tiny", messages=messages, stream=stream)
    assert (error.value.code, error.value.param) == ("image_invalid", "messages.0.content.0")
