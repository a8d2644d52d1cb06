"""Log-probabilities through engine and API shapes: what evaluation harnesses read, against `transformers`."""

import pytest
import torch

from services.generator.core.messages import TokenLogprob
from services.generator.core.request import FinishReason
from services.generator.engine.build import build_model
from shared.text.token_bytes import readable, token_bytes
from tests.generator.driving import OfflineEngine
from tests.generator.test_api import Api
from tests.generator.test_parity import reference, settings_for


@pytest.mark.parametrize("chunk", [16, 23, 256])
def test_prompt_and_output_logprobs_equal_the_references(tiny_llama, chunk):
    prompts = [list(range(60)), [5, 6, 7], list(range(100, 140))]
    engine = OfflineEngine(build_model(settings_for(tiny_llama, max_num_batched_tokens=chunk)))
    engine.generate(prompts, max_tokens=3)  # fills the prefix cache, which must not be read
    outputs = engine.generate(prompts, max_tokens=3, logprobs=2, prompt_logprobs=4)
    model = reference(tiny_llama)
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        tokens = prompt + output
        with torch.inference_mode():
            exact = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)
        scored = engine.prompt_logprobs[index] + engine.logprobs[index]
        assert len(engine.prompt_logprobs[index]) == len(prompt) - 1
        assert [len(entry.top) for entry in scored] == [4] * (len(prompt) - 1) + [2] * len(output)
        for position, entry in enumerate(scored):
            assert entry.logprob == pytest.approx(exact[position, tokens[position + 1]].item(), abs=1e-4)
            best = exact[position].topk(len(entry.top))
            assert [token_id for token_id, _ in entry.top] == best.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_prompt_logprobs_survive_preemption_once_each(tiny_llama):
    settings = settings_for(tiny_llama, max_num_batched_tokens=16, num_gpu_blocks_override=17)
    engine = OfflineEngine(build_model(settings))
    prompts = [[n, *range(80)] for n in range(4)]
    engine.generate(prompts, max_tokens=100, prompt_logprobs=0)
    assert engine.stats().num_preemptions > 0
    assert [len(entries) for entries in engine.prompt_logprobs.values()] == [80] * 4


# --- the shapes ---


class ScoredApi(Api):
    """Says two bytes of a character, then the letter b, each with log-probabilities."""

    def __init__(self, folder):
        super().__init__(folder)
        first, second, letter = self.tokenizer.encode("éb")
        self.ids = (first, second, letter)
        self.script = lambda prompt, sampling: [
            ([first], TokenLogprob(-0.5, [(first, -0.5), (letter, -1.0)])),
            ([second], TokenLogprob(float("-inf"), [(second, float("-inf"))])),
            ([letter], TokenLogprob(-2.0, [(first, -0.1)])),
            FinishReason.LENGTH,
        ]
        self.engine.prompt_logprobs = [TokenLogprob(-3.0, [(letter, -0.25)])]


@pytest.fixture
def api(tiny_llama):
    return ScoredApi(tiny_llama)


def test_completion_logprobs(api):
    body = api.post("/v1/completions", {"prompt": "hi", "logprobs": 2}).json()
    assert body["choices"][0]["text"] == "éb"
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-0.5, -9999.0, -2.0],
        "top_logprobs": [{"bytes:\\xc3": -0.5, "b": -1.0}, {"bytes:\\xa9": -9999.0}, {"bytes:\\xc3": -0.1, "b": -2.0}],
        "text_offset": [0, 0, 1],
    }


def test_chat_logprobs_carry_raw_bytes(api):
    body = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2}
    content = api.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9], [ord("b")]]
    assert content[0]["top_logprobs"][1] == {"token": "b", "logprob": -1.0, "bytes": [ord("b")]}
    assert content[1]["logprob"] == -9999.0


def test_what_a_broken_model_says_can_be_sent(api):
    nan = float("nan")
    api.script = lambda prompt, sampling: [(api.ids[2:], TokenLogprob(nan, [(0, nan)])), FinishReason.LENGTH]
    logprobs = api.post("/v1/completions", {"prompt": "hi", "logprobs": 1}).json()["choices"][0]["logprobs"]
    assert (logprobs["token_logprobs"], logprobs["top_logprobs"]) == ([-9999.0], [{"!": -9999.0, "b": -9999.0}])


def test_streamed_logprobs_are_those_of_the_whole_answer(api):
    whole = api.post("/v1/completions", {"prompt": "hi", "logprobs": 2}).json()["choices"][0]["logprobs"]
    chunks = api.events("/v1/completions", {"prompt": "hi", "logprobs": 2})
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert {name: [item for part in parts for item in part[name]] for name in whole} == whole


def test_echo_alone_is_the_prompt_with_its_logprobs(api):
    body = api.post("/v1/completions", {"prompt": "hb", "echo": True, "max_tokens": 0, "logprobs": 1}).json()
    assert body["choices"][0]["text"] == "hb"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["h", "b"],
        "token_logprobs": [None, -3.0],
        "top_logprobs": [None, {"b": -0.25}],
        "text_offset": [0, 1],
    }
    assert body["usage"]["completion_tokens"] == 0
    assert api.engine.submitted[0][1].prompt_logprobs == 1


def test_echo_puts_the_prompt_in_front_whole_and_streamed(api):
    fields = {"prompt": "hb", "echo": True, "logprobs": 1}
    choice = api.post("/v1/completions", fields).json()["choices"][0]
    assert choice["text"] == "hbéb"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2, 3]
    api.engine.prompt_logprobs = [TokenLogprob(-3.0, [(api.ids[2], -0.25)])]
    chunks = api.events("/v1/completions", fields)
    assert "".join(c["choices"][0]["text"] for c in chunks) == "hbéb"
    assert [o for c in chunks for o in c["choices"][0]["logprobs"]["text_offset"]] == [0, 1, 2, 2, 3]


def test_without_logprobs_there_are_none(api):
    assert api.post("/v1/completions", {"prompt": "hi"}).json()["choices"][0]["logprobs"] is None
    assert api.engine.submitted[0][1].logprobs is None


def test_bytes_of_tokens():
    assert token_bytes("Ġhé", is_byte_level=True) == b" h\xe9"
    assert token_bytes("▁the", is_byte_level=False) == b" the"
    assert token_bytes("<0xE2>", is_byte_level=False) == b"\xe2"
    assert readable(b"\xe2\x82") == "bytes:\\xe2\\x82"
    assert readable("€".encode()) == "€"
