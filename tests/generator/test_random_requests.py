"""Random requests, right ones and almost right ones, on every path: an answer or a 4xx in the one shape, never a 500.

Each field is drawn from values that are right, nearly right and wild, so that checks over several fields are reached too.
"""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.generator.core.messages import TokenLogprob
from services.generator.core.request import FinishReason
from services.generator.images.prepared_cache import PreparedCache
from services.generator.images.preparer import ImagePreparer, IntakeLimits
from shared.contracts.chat import ChatRequest
from shared.contracts.completions import CompletionRequest
from shared.contracts.fields import Standing, standing
from shared.contracts.tokenize import DetokenizeRequest, TokenizeRequest
from tests.fakes.row_per_pixel import RowPerPixel
from tests.generator.test_api import EOS, Api

wild = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
flags = st.none() | st.booleans()
ids = st.integers(0, 258)
texts = st.text("abé <|/s>👩\x00", min_size=1, max_size=6)
calls = st.builds(
    lambda name, arguments: {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}},
    texts,
    st.sampled_from(["", "{}", '{"a": [1, null]}']),
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": texts}),
    st.fixed_dictionaries({"role": st.just("user"), "content": st.just([{"type": "text", "text": "a"}])}),
    st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": st.lists(calls, min_size=1, max_size=1)}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": texts, "tool_call_id": st.just("c")}),
)
RIGHT = {
    "model": st.sampled_from(["tiny", None]),
    "prompt": texts
    | st.lists(texts, min_size=1, max_size=3)
    | st.lists(st.lists(ids, min_size=1, max_size=3), min_size=1),
    "messages": st.lists(messages, min_size=1, max_size=2),
    "tokens": st.lists(ids, max_size=5),
    "stop": texts | st.lists(texts, max_size=3),
    "stream_options": st.fixed_dictionaries(
        {}, optional={"include_usage": flags, "include_obfuscation": st.just(False)}
    ),
    "logit_bias": st.dictionaries(ids.map(str), st.floats(-100, 100), max_size=3),
    "allowed_token_ids": st.lists(ids, min_size=1, max_size=3),
    "stop_token_ids": st.lists(ids, max_size=3),
    "bad_words": st.lists(texts, max_size=3),
    "chat_template_kwargs": st.just({}),
    "cache_salt": texts,
    "metadata": st.dictionaries(texts, texts, max_size=2),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "min_p": st.floats(0, 1),
    "top_k": st.integers(-1, 50),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.integers(-2, 2),
    "repetition_penalty": st.floats(0.01, 100),
    "seed": st.integers(-(2**63), 2**63 - 1),
    **dict.fromkeys(["max_tokens", "max_completion_tokens", "n"], st.integers(1, 4)),
    **dict.fromkeys(["user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"], texts),
    **dict.fromkeys(["prediction", "prompt_cache_options"], st.just({})),
    **dict.fromkeys(["min_tokens", "top_logprobs"], st.integers(0, 3)),
}
nearly_parts = st.sampled_from(
    [
        None,
        "text",
        {},
        {"type": "file"},
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
        {"type": "image_url", "image_url": {"url": "file:///a", "detail": "auto"}},
    ]
)
NEARLY = {
    "prompt": st.sampled_from(["", [], [""], [[]], [259], [-1], [True], ["a", 1], "x" * 70, ["a"] * 300]),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool", "function"])},
            optional={
                "content": st.sampled_from([None, "a", [], [{"type": "image_url"}], 3])
                | st.lists(nearly_parts, max_size=3),
                "tool_calls": st.sampled_from([None, [], [{"id": "c"}], [{"function": {"arguments": "{"}}]]),
                "tool_call_id": texts,
                "tone": texts,
            },
        ),
        max_size=2,
    ),
    "chat_template_kwargs": st.dictionaries(
        st.sampled_from(["messages", "foo", "bos_token"]), wild, min_size=1, max_size=1
    ),
    "model": st.just("other"),
}
nearly_numbers = st.sampled_from(
    [-3, -1, 0, 0.5, 2.5, 21, 259, 2**31, 2**63, 1e300, True, "1", [], {"1": 1}, {"259": 1}]
)
CONTRACTS = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


def bodies(contract):
    """What the contract requires and some of the rest, all right, and then mostly something that is not."""
    chat_only = {"logprobs": flags if contract is ChatRequest else st.integers(0, 20)}
    right = {name: (RIGHT | chat_only).get(name, flags) for name in contract.model_fields}
    refused = {name for name, field in contract.model_fields.items() if standing(field.metadata) is Standing.REFUSED}
    required = {name: right[name] for name, field in contract.model_fields.items() if field.is_required()}
    optional = sorted(right.keys() - required.keys() - refused)
    some = st.lists(st.sampled_from(optional), max_size=5, unique=True).flatmap(
        lambda names: st.fixed_dictionaries(required | {name: right[name] for name in names})
    )
    wrong = st.sampled_from([*contract.model_fields, "unknown"]).flatmap(
        lambda name: st.fixed_dictionaries({name: NEARLY.get(name, nearly_numbers) | wild})
    )
    return st.builds(lambda body, change: body | change, some, st.just({}) | wrong)


requests = st.sampled_from(sorted(CONTRACTS)).flatmap(lambda path: st.tuples(st.just(path), bodies(CONTRACTS[path])))


def speak(prompt, sampling):
    """As many tokens as were asked for, at most three, with log-probabilities where they were asked for."""
    token = ([104], TokenLogprob(-0.5, [(104, -0.5)])) if sampling.logprobs is not None else [104]
    end = (
        []
        if sampling.max_tokens <= 3
        else [([EOS], TokenLogprob(-0.5, [])) if sampling.logprobs is not None else [EOS]]
    )
    tokens = [token] * min(3, sampling.max_tokens) + end
    return [*tokens, FinishReason.STOP if end else FinishReason.LENGTH]


@pytest.fixture(scope="module")
def api(tiny_llama):
    """One application for all examples: what a request breaks, the next ones show."""
    api = Api(tiny_llama, images=ImagePreparer(RowPerPixel(258), IntakeLimits(2, 100, 100), PreparedCache(2**20)))
    api.script = speak
    return api


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(sent=requests)
def test_an_answer_or_a_4xx_and_never_a_500(api, sent):
    path, body = sent
    response = api.post(path, body)
    if response.status_code == 200 and body.get("stream") is True:
        events = [json.loads(block.removeprefix("data: ")) for block in response.text.split("\n\n")[:-2]]
        assert response.text.endswith("data: [DONE]\n\n")
        assert not any("error" in event for event in events)
    elif response.status_code == 200:
        assert "error" not in response.json()
    else:
        assert response.status_code in (400, 404)
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["param"] is not None
        assert error["message"]
        assert error["message"] == response.json()["message"]
