"""Services with several replicas, and services that go away and come back: what clients notice, and what they do not."""

import concurrent.futures
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import httpx
import pytest

from tests.fakes.fake_service import Call, FakeService, echo
from tests.fakes.live_server import LiveServer
from tests.gateway.conftest import Suite


def embed(suite: Suite) -> httpx.Response:
    return suite.client.post("/v1/embeddings", json={"input": "a"})


def two_embedders(suite: Suite, **settings: object) -> tuple[FakeService, FakeService]:
    first, second = FakeService("embed", "emb"), FakeService("embed", "emb")
    urls = [suite.serve(first).url, suite.serve(second).url]
    suite.ready(embedder_url=urls, **settings)
    suite.wait(
        lambda: suite.metric('trivium_gateway_upstream_replicas{service="embedder",state="ready"}') == 2, "both ready"
    )
    return first, second


def test_ties_are_taken_in_turn(suite: Suite) -> None:
    first, second = two_embedders(suite)
    for _ in range(10):
        assert embed(suite).status_code == 200
    assert (len(first.calls), len(second.calls)) == (5, 5)


def test_the_replica_with_less_to_do_is_chosen(suite: Suite) -> None:
    first, second = two_embedders(suite)

    async def hold(call: Call) -> None:
        await first.wait_release()
        await call.reply({})

    first.handler = hold
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        held = [pool.submit(embed, suite) for _ in range(2)]  # one of the two waits at the first replica
        suite.wait(lambda: first.calls and second.calls, "both have one")
        before = len(second.calls)
        for _ in range(5):
            assert embed(suite).status_code == 200
        assert (len(first.calls), len(second.calls)) == (1, before + 5)
        first.release.set()
        assert [future.result().status_code for future in held] == [200, 200]


def test_a_dead_replica_is_not_noticed_by_clients(suite: Suite) -> None:
    first, second = two_embedders(suite, probe_interval_s=30.0)
    suite.servers[first].stop()
    assert [embed(suite).status_code for _ in range(6)] == [200] * 6
    assert len(second.calls) == 6
    assert suite.metric('trivium_gateway_upstream_retries_total{service="embedder"}') == 1, "it is marked down at once"
    assert suite.parts()["embedder"] == "ready"


def test_a_replica_that_dies_during_requests(suite: Suite) -> None:
    first, second = two_embedders(suite)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = [pool.submit(embed, suite) for _ in range(100)]
        suite.servers[first].stop()
        results += [pool.submit(embed, suite) for _ in range(100)]
        codes = Counter(result.result().status_code for result in results)
    assert codes == {200: 200}, "it had nothing unfinished when it went, so nobody notices"
    assert second.calls
    suite.servers[first].start()
    suite.wait(
        lambda: suite.metric('trivium_gateway_upstream_replicas{service="embedder",state="ready"}') == 2, "back again"
    )
    before = len(first.calls)
    for _ in range(4):
        embed(suite)
    assert len(first.calls) == before + 2


def test_a_replica_that_breaks_off_is_not_asked_again(suite: Suite) -> None:
    first, second = two_embedders(suite)

    async def die(call: Call) -> None:
        await call.start(200, {"content-type": "application/json"})

    first.handler = second.handler = die
    with pytest.raises(httpx.RemoteProtocolError):
        embed(suite)
    assert len(first.calls) + len(second.calls) == 1


def test_a_request_that_is_dropped_goes_to_one_other_replica_only(suite: Suite) -> None:
    dropping = [FakeService("embed", "emb", handler=Call.drop) for _ in range(3)]
    suite.ready(embedder_url=[suite.serve(replica).url for replica in dropping])
    response = embed(suite)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_invalid")
    # Each is asked on its connection from the probes and once more on a fresh one.
    assert sum(bool(replica.calls) for replica in dropping) == 2
    for replica in dropping:
        replica.handler = echo
    assert embed(suite).status_code == 200


def test_a_replica_that_drains_hands_its_requests_to_another(suite: Suite) -> None:
    first, second = two_embedders(suite, probe_interval_s=30.0)
    first.state = "draining"
    assert [embed(suite).status_code for _ in range(6)] == [200] * 6
    assert len(first.calls) == 1, "it said so once and is left alone until a probe finds it ready"
    second.state = "draining"
    response = embed(suite)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
    assert response.headers["retry-after"] == "1"


def test_states_are_shown_by_name(suite: Suite, dead_url: str) -> None:
    suite.generator.state = "starting"
    suite.reranker.state = "draining"
    suite.start(embedder_url=[dead_url])
    suite.wait(
        lambda: suite.parts() == {"generator": "starting", "embedder": "down", "reranker": "draining"}, "all states"
    )
    ready = suite.client.get("/ready")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert suite.client.get("/health").status_code == 200
    response = suite.client.post("/v1/completions", json={})
    assert (response.status_code, response.json()["error"]["message"]) == (503, "not now"), "the service's own words"
    suite.generator.state = "ready"
    suite.wait(lambda: suite.parts()["generator"] == "ready", "ready")
    assert suite.client.post("/v1/completions", json={}).status_code == 200
    assert suite.client.post("/rerank", json={}).status_code == 503


def test_a_service_that_is_down_and_comes_back(suite: Suite) -> None:
    suite.ready(probe_interval_s=30.0)
    server = suite.servers[suite.embedder]
    server.stop()
    for _ in range(3):
        response = embed(suite)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "upstream_unavailable")
        assert "embedder" in error["message"]
        assert "127.0.0.1" not in response.text
        assert response.headers["retry-after"] == "1"
    assert suite.metric('trivium_gateway_upstream_errors_total{kind="upstream_unavailable",service="embedder"}') == 3
    assert suite.client.post("/v1/completions", json={}).status_code == 200, "the others go on"
    server.start()
    assert embed(suite).status_code == 200, "the first request finds it, before any probe does"


@contextlib.contextmanager
def silent_address() -> Iterator[str]:
    """A port that accepts no more connections and does not refuse any: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_that_does_not_answer_costs_no_more_than_the_connect_time_out(suite: Suite) -> None:
    with silent_address() as silent:
        suite.start(embedder_url=[silent], connect_timeout_s=0.3, probe_timeout_s=0.2)
        started_at = time.monotonic()
        response = embed(suite)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "upstream_unavailable")
        assert time.monotonic() - started_at < 5
        suite.wait(lambda: suite.parts()["embedder"] == "down", "down")


def test_a_silent_address_leaves_time_for_the_others(suite: Suite) -> None:
    with silent_address() as silent:
        server = suite.serve(suite.embedder)
        suite.start(embedder_url=[silent, server.url], connect_timeout_s=1.0, probe_interval_s=30.0)
        assert [embed(suite).status_code for _ in range(4)] == [200] * 4


class Names:
    """A DNS that the test writes."""

    def __init__(self, **addresses: Sequence[str]) -> None:
        self.addresses = addresses
        self.num_lookups = 0

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.num_lookups += 1
        if host not in self.addresses:
            raise OSError("no such name")
        return self.addresses[host]


def test_every_address_of_a_name_is_a_replica_and_they_may_change(suite: Suite) -> None:
    first, second = FakeService("embed", "emb"), FakeService("embed", "emb")
    port = suite.serve(first).port
    suite.serve(second, host="127.0.0.2", port=port)
    names = Names(embedder=["127.0.0.1"])
    suite.resolve = names
    suite.ready(embedder_url=[f"http://embedder:{port}"])

    def ready_replicas() -> float:
        return suite.metric('trivium_gateway_upstream_replicas{service="embedder",state="ready"}')

    assert [embed(suite).status_code for _ in range(2)] == [200] * 2
    assert (len(first.calls), len(second.calls)) == (2, 0)
    assert first.calls[0].headers["host"] == f"embedder:{port}"

    names.addresses["embedder"] = ["127.0.0.2", "127.0.0.1"]
    suite.wait(lambda: ready_replicas() == 2, "the new one is ready")
    for _ in range(4):
        embed(suite)
    assert (len(first.calls), len(second.calls)) == (4, 2)

    names.addresses["embedder"] = ["127.0.0.2"]
    suite.wait(lambda: ready_replicas() == 1, "the old one is gone")
    for _ in range(3):
        embed(suite)
    assert (len(first.calls), len(second.calls)) == (4, 5)

    del names.addresses["embedder"]  # DNS itself fails: what is known stays
    num_lookups = names.num_lookups
    suite.wait(lambda: names.num_lookups > num_lookups + 1, "looked up again")
    assert embed(suite).status_code == 200


def test_a_name_without_addresses_is_a_service_that_is_down(suite: Suite) -> None:
    suite.resolve = Names()
    suite.start(embedder_url=["http://embedder:1"])
    response = embed(suite)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert suite.parts()["embedder"] == "down"


def test_restarts_behind_used_connections_are_not_noticed(suite: Suite) -> None:
    suite.ready()
    server: LiveServer = suite.servers[suite.embedder]
    for _ in range(3):
        assert embed(suite).status_code == 200
        server.stop()
        server.start()
        assert embed(suite).status_code == 200
