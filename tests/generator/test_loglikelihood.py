"""Scoring as evaluation harnesses do it, over HTTP and through the real engine: `echo`, log-probabilities, against `transformers`.

A harness sends context and continuation as one prompt and sums the continuation's log-probabilities; whether the continuation
is what greedy decoding would say it reads from `top_logprobs`. It asks for no token (`max_tokens: 0`) or for one, which it drops.
"""

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from shared.text.tokenizer import Tokenizer
from tests.fakes.service_process import ServiceProcess

PAIRS = [
    ("The capital of France is", " Paris."),
    ("The capital of France is", " a banana in the night."),
    ("Question: What do cows drink?\nAnswer:", " Water"),
    ("Two plus two is", " four, and two plus three is five. " * 5),
    ("Ein Satz mit Umlauten: ä, ö, ü.", " Schön, wie das Café 🙂 leuchtet."),
]


class Peer:
    """The reference model in fp32."""

    def __init__(self, folder):
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def greedy(self, tokens, count):
        """The `count` likeliest tokens after `tokens`."""
        said = []
        for _ in range(count):
            said.append(self._logprobs(tokens + said)[-1].argmax().item())
        return said

    def score(self, context, continuation):
        """Sum over `continuation`, and whether greedy decoding would say it."""
        tokens = context + continuation
        rows = self._logprobs(tokens)[len(context) - 1 : len(tokens) - 1]
        total = rows.gather(1, torch.tensor(continuation)[:, None]).sum().item()
        return total, rows.argmax(-1).tolist() == continuation

    def _logprobs(self, tokens):
        with torch.inference_mode():
            return torch.log_softmax(self._model(torch.tensor([tokens])).logits[0].double(), -1)


def score(url, prompt, num_context, max_tokens):
    """As harnesses read it, for one prompt or several of token ids or text."""
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0, "seed": 1234}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    results = []
    for choice, start in zip(response.json()["choices"], num_context, strict=True):
        scores = choice["logprobs"]
        assert scores["token_logprobs"][0] is None
        part = slice(start, len(scores["tokens"]) - max_tokens)
        best = [max(top, key=top.get) for top in scores["top_logprobs"][part]]
        results.append((sum(scores["token_logprobs"][part]), best == scores["tokens"][part]))
    return results


def check(folder, url):
    tokenizer, peer = Tokenizer(folder), Peer(folder)
    pairs = [[tokenizer.encode(text, add_special_tokens=False) for text in pair] for pair in PAIRS]
    pairs.append([pairs[0][0], peer.greedy(pairs[0][0], 3)])
    expected = [peer.score(*pair) for pair in pairs]
    assert expected[-1][1]
    prompts, starts = [context + rest for context, rest in pairs], [len(context) for context, _ in pairs]
    for max_tokens in (0, 1):
        one_by_one = [score(url, prompt, [start], max_tokens)[0] for prompt, start in zip(prompts, starts, strict=True)]
        for found in (score(url, prompts, starts, max_tokens), one_by_one):
            assert [total for total, _ in found] == pytest.approx([total for total, _ in expected], abs=1e-3)
            assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]
    text = PAIRS[2][0] + PAIRS[2][1]
    assert tokenizer.encode(text) == prompts[2], "this pair is chosen so that it can be sent as text too"
    assert score(url, text, [starts[2]], 0)[0][0] == pytest.approx(expected[2][0], abs=1e-3)


@pytest.mark.e2e
def test_a_tiny_model(tiny_llama, tmp_path):
    args = ["--model", str(tiny_llama), "--num-threads", "1", "--max-num-batched-tokens", "64"]
    with ServiceProcess("generator", tmp_path / "log", *args) as service:
        service.wait_ready()
        check(tiny_llama, service.url)


@pytest.mark.e2e
@pytest.mark.models
@pytest.mark.slow
def test_the_embedded_model(models_dir, tmp_path):
    folder = models_dir / "smollm2-135m-instruct"
    with ServiceProcess("generator", tmp_path / "log", "--model", str(folder), "--num-threads", "2") as service:
        service.wait_ready()
        check(folder, service.url)
