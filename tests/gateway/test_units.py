"""Decisions of the gateway that need no socket: choosing a replica, noting states, looking up names."""

import asyncio
import subprocess
import sys
from typing import Any

from services.gateway.inbound import Inbound
from services.gateway.paths import Service
from services.gateway.resolver import resolve_name
from services.gateway.routing import Balancer
from services.gateway.upstreams import Replica, ReplicaState, Target, Upstreams
from shared.contracts.models import ModelEntry

TARGET = Target("http", "embedder", 8002)


def upstreams(*addresses: str) -> Upstreams:
    made = Upstreams({service: [TARGET] if service is Service.EMBEDDER else [] for service in Service})
    made.set_addresses(Service.EMBEDDER, TARGET, addresses)
    return made


def inbound(body: bytes = b"{}") -> Inbound:
    return Inbound(Service.EMBEDDER, "POST", "/v1/embeddings", b"/v1/embeddings", [], body)


def chosen(balancer: Balancer, *tried: Replica) -> str | None:
    replica = balancer.choose(balancer.candidates(inbound()), tried)
    return None if replica is None else replica.origin.address


def test_balancer() -> None:
    state = upstreams("a", "b", "c")
    a, b, c = state.replicas(Service.EMBEDDER)
    balancer = Balancer(state)
    assert {chosen(balancer) for _ in range(3)} == {"a", "b", "c"}, "any, while none is known to be ready"
    a.state, b.state, c.state = ReplicaState.DOWN, ReplicaState.READY, ReplicaState.READY
    assert {chosen(balancer) for _ in range(6)} == {"b", "c"}
    b.num_in_flight = 1
    assert {chosen(balancer) for _ in range(3)} == {"c"}
    assert chosen(balancer, c) == "b"
    assert chosen(balancer, b, c) == "a"
    assert chosen(balancer, a, b, c) is None
    assert balancer.choose([], ()) is None


def test_where_replicas_serve_different_models_those_with_the_named_one_are_asked() -> None:
    state = upstreams("text", "vision", "new")
    text, vision, new = state.replicas(Service.EMBEDDER)
    for replica, names in ((text, ["llm", "pirate"]), (vision, ["llm", "vlm"])):
        state.note_models(replica, [ModelEntry(id=name, created=1, task="embed", max_model_len=1) for name in names])
    everyone, balancer = [text, vision, new], Balancer(state)
    bodies: dict[bytes, list[Replica]] = {
        b"{}": everyone,
        b'{"model": null}': everyone,
        b'{"model": "llm"}': everyone,
        b'{"model": "vlm"}': [vision, new],
        b'{"model" :\t"pirate"}': [text, new],
        b'{"model": "llm", "lora": "pirate"}': [text, new],
        b'{"model": "unknown", "lora": null}': everyone,
        b'{"tools": [{"model": "unknown"}], "model": "vlm"}': [vision, new],
        b'\xff"model": 3 "lora"': everyone,
    }
    assert {body: balancer.candidates(inbound(body)) for body in bodies} == bodies
    state.note_models(vision, [ModelEntry(id="vlm", created=1, task="embed", max_model_len=1)])
    for body in (b"{}", b'{"model": "unknown"}'):
        assert balancer.candidates(inbound(body)) == [text, new], "the first replica's model is meant"
    state.note_state(vision, ReplicaState.DOWN)
    state.note_models(new, [ModelEntry(id="llm", created=1, task="embed", max_model_len=1)])
    assert balancer.candidates(inbound(b'{"model": "vlm"}')) == [vision], (
        "the others would say that there is no such model"
    )
    assert balancer.candidates(inbound(b'{"model": "llm"}')) == [text, new]


def test_states() -> None:
    state = upstreams("a", "b")
    a, b = state.replicas(Service.EMBEDDER)
    assert state.state(Service.EMBEDDER) is ReplicaState.STARTING
    assert state.state(Service.GENERATOR) is ReplicaState.DOWN
    state.note_state(a, ReplicaState.READY)
    state.note_state(b, ReplicaState.DOWN)
    assert state.state(Service.EMBEDDER) is ReplicaState.READY
    state.note_timeout(a)
    assert a.state is ReplicaState.READY, "one slow answer is a busy replica"
    state.note_timeout(a)
    assert a.state is ReplicaState.DOWN
    assert state.state(Service.EMBEDDER) is ReplicaState.DOWN


def test_addresses_keep_their_state() -> None:
    state = upstreams("a", "b")
    a, _ = state.replicas(Service.EMBEDDER)
    state.note_state(a, ReplicaState.READY)
    entry = ModelEntry(id="emb", created=1, task="embed", max_model_len=8)
    state.note_models(a, [entry])
    state.set_addresses(Service.EMBEDDER, TARGET, ["c", "a", "a"])
    assert [(replica.origin.address, replica.state) for replica in state.replicas(Service.EMBEDDER)] == [
        ("c", ReplicaState.STARTING),
        ("a", ReplicaState.READY),
    ]
    assert state.ready_models() == [entry]
    assert state.service_of_model("emb") is Service.EMBEDDER
    state.note_state(a, ReplicaState.DOWN)
    assert state.ready_models() == []
    assert state.service_of_model("emb") is Service.EMBEDDER, "a wrong path is explained all the same"
    state.set_addresses(Service.EMBEDDER, TARGET, [])
    assert state.service_of_model("emb") is None


def test_ipv4_addresses_are_preferred() -> None:
    async def run(answers: list[str]) -> list[str]:
        loop = asyncio.get_running_loop()

        async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
            return [(0, 0, 0, "", (address, 80)) for address in answers]

        loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign]
        return list(await resolve_name("x", 80))

    assert asyncio.run(run(["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2"])) == ["10.0.0.1", "10.0.0.2"]
    assert asyncio.run(run(["::2", "::1"])) == ["::1", "::2"]


def test_the_gateway_loads_nothing_heavy() -> None:
    code = (
        "import sys, services.gateway.app\n"
        "heavy = {'torch', 'triton', 'numpy', 'transformers', 'tokenizers', 'safetensors', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
