"""A gateway made of the standard library: enough of the API for the RAG example, and a record of what was asked.

Called by test_rag. Embeds by counting a few words, reranks by shared words, and "generates" the answer it was given.
"""

import base64
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

AXES = ("ferry", "lamp", "goat", "storm")
MODELS = [
    {"id": "gen-adapter", "object": "model", "created": 0, "owned_by": "t", "task": "generate", "parent": "gen"},
    {"id": "gen", "object": "model", "created": 0, "owned_by": "t", "task": "generate"},
    {"id": "emb", "object": "model", "created": 0, "owned_by": "t", "task": "embed"},
    {"id": "rer", "object": "model", "created": 0, "owned_by": "t", "task": "rerank"},
]


@dataclass
class FakeGateway:
    """What the fake answers, set by the test, and the (path, body) pairs it was asked, filled by the server."""

    answer: str = ""
    ready_status: int = 200
    models: list[dict[str, Any]] = field(default_factory=lambda: list(MODELS))
    embed_status: int = 200
    is_stream_cut: bool = False
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    base_url: str = ""

    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for asked, body in self.calls if asked == path]


@contextmanager
def serve(fake: FakeGateway) -> Iterator[FakeGateway]:
    """Serve the fake on a free port until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="fake-gateway")
    thread.start()
    fake.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def embed_text(text: str) -> list[float]:
    """How often each word of AXES occurs; an own length, which the example has to normalise away."""
    return [float(text.lower().count(axis)) for axis in AXES]


class _Handler(BaseHTTPRequestHandler):
    fake: FakeGateway

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._record({})
        if self.path == "/ready":
            self._send(self.fake.ready_status, {"status": "…"})
        else:
            self._send(200, {"object": "list", "data": self.fake.models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._record(body)
        {"/v1/embeddings": self._embed, "/v1/rerank": self._rerank, "/v1/chat/completions": self._chat}[self.path](body)

    def _record(self, body: dict[str, Any]) -> None:
        self.fake.calls.append((self.path, body))
        self.fake.authorizations.append(self.headers.get("Authorization", ""))

    def _embed(self, body: dict[str, Any]) -> None:
        if self.fake.embed_status != 200:
            self._send(self.fake.embed_status, {"error": {"message": "no room", "type": "t", "code": "c"}})
            return
        data = [
            {"object": "embedding", "index": index, "embedding": _base64_of(embed_text(text))}
            for index, text in enumerate(body["input"])
        ]
        # Out of order on purpose: the index says which is which.
        self._send(200, {"object": "list", "model": body["model"], "data": data[::-1], "usage": _USAGE})

    def _rerank(self, body: dict[str, Any]) -> None:
        wanted = set(body["query"].lower().strip("?").split())
        scores = [len(wanted & set(text.lower().replace(".", "").split())) for text in body["documents"]]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body["top_n"]]
        self._send(200, {"results": [{"index": i, "relevance_score": scores[i] / 10} for i in order]})

    def _chat(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in self.fake.answer.split(" "):
            self._event(body, {"content": piece + " "}, None)
        if not self.fake.is_stream_cut:
            self._event(body, {}, "stop")
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, body: dict[str, Any], delta: dict[str, str], finish_reason: str | None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
        self.wfile.write(b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n")

    def _send(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


_USAGE = {"prompt_tokens": 1, "total_tokens": 1}


def _base64_of(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
