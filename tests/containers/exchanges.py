"""One request of each kind through the gateway, and what must be in its answer.

Called by __main__ with the gateway's address; standard library only. The models are the embedded ones.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import urllib.request
import zlib
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 120
QUESTION = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    "temperature": 0,
}


def check_ready(url: str) -> None:
    answer = _get(f"{url}/ready")
    assert answer["ready"] is True, answer


def list_models(url: str) -> None:
    tasks = {model["id"]: model["task"] for model in _get(f"{url}/v1/models")["data"]}
    generating = ("smollm2-135m-instruct", "pirate", "json", "smollm2-135m-vision")
    expected = dict.fromkeys(generating, "generate") | {"all-minilm-l6-v2": "embed", "minilm-reranker": "rerank"}
    assert tasks == expected, tasks


def send_chat(url: str) -> None:
    content = _post(f"{url}/v1/chat/completions", QUESTION)["choices"][0]["message"]["content"]
    assert "Paris" in content, content


def send_chat_to_adapter(url: str) -> None:
    content = _post(f"{url}/v1/chat/completions", {**QUESTION, "model": "pirate"})["choices"][0]["message"]["content"]
    assert content.startswith("Arr! "), content


def stream_chat(url: str) -> None:
    lines = _send(f"{url}/v1/chat/completions", {**QUESTION, "stream": True}).split("\n\n")
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    deltas = [choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "Paris" in "".join(deltas), deltas
    assert len(deltas) > 3, "the answer came in one piece"


def send_image(url: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_red_square()}"}}]
    parts.append({"type": "text", "text": "What color is it?"})
    body = {"model": "smollm2-135m-vision", "messages": [{"role": "user", "content": parts}], "temperature": 0}
    content = _post(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"]
    assert "red" in content, content


def _red_square() -> str:
    """A PNG file of 32 x 32 pixels, in base64."""
    red, white = bytes((220, 30, 30)), bytes((255, 255, 255))
    row, edge = b"\0" + white * 8 + red * 16 + white * 8, b"\0" + white * 32

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    pixels = zlib.compress(edge * 8 + row * 16 + edge * 8)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return base64.b64encode(file).decode()


def send_completion(url: str) -> None:
    body = {"model": "smollm2-135m-instruct", "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    text = _post(f"{url}/v1/completions", body)["choices"][0]["text"]
    assert "Paris" in text, text


def send_embedding(url: str) -> None:
    body = {"model": "all-minilm-l6-v2", "input": ["a cat", "a kitten", "a mortgage"]}
    cat, kitten, mortgage = (item["embedding"] for item in _post(f"{url}/v1/embeddings", body)["data"])
    assert len(cat) == 384, len(cat)
    assert _dot(cat, kitten) > _dot(cat, mortgage)


def send_rerank(url: str) -> None:
    documents = ["Bread is baked in an oven.", "Mont Blanc is 4806 m high."]
    body = {"model": "minilm-reranker", "query": "How high is Mont Blanc?", "documents": documents}
    results = _post(f"{url}/v1/rerank", body)["results"]
    assert [result["index"] for result in results] == [1, 0], results


EXCHANGES: dict[str, Callable[[str], None]] = {
    "ready": check_ready,
    "models": list_models,
    "chat": send_chat,
    "chat with an adapter": send_chat_to_adapter,
    "chat with an image": send_image,
    "streamed chat": stream_chat,
    "completion": send_completion,
    "embeddings": send_embedding,
    "rerank": send_rerank,
}


def read_metric(text: str, series: str) -> float:
    """The value of one series in Prometheus's text format; 0 where it is missing."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def _post(url: str, body: dict[str, Any]) -> Any:
    return json.loads(_send(url, body))


def _send(url: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


def _dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
