"""Takes one request through the gateway: finds a replica that answers, copies the answer, counts what happened.

Called by the routes. This is the only place that decides to try again: when nothing was sent to the client and the replica has
not started the request, because no connection came about or because it said `not_ready`. Every replica is tried once. A request
that was dropped (`UpstreamDroppedError`: most likely the replica was just leaving) goes to one other replica but not to a third,
so that a request that kills servers does not walk through all of them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

from starlette.types import Receive, Scope, Send

from services.gateway.clients import Answer, ServiceClient
from services.gateway.inbound import Inbound
from services.gateway.metrics import GatewayMetrics
from services.gateway.relay import Relay
from services.gateway.routing import Balancer
from services.gateway.settings import GatewaySettings
from services.gateway.upstreams import Replica, ReplicaState, Upstreams
from shared.errors import DeadlineExceededError, OverloadedError, ServiceError, UpstreamUnavailableError
from shared.http.client import UpstreamDroppedError
from shared.http.disconnect import cancelled_on_disconnect
from shared.observability.logging import get_logger

log = get_logger(__name__)
_COUNTED_BY_ATTEMPT = (UpstreamUnavailableError, UpstreamDroppedError)


class Forwarder:
    """Forwards requests, at most `max_in_flight` at a time."""

    def __init__(
        self, settings: GatewaySettings, upstreams: Upstreams, client: ServiceClient, metrics: GatewayMetrics
    ) -> None:
        self._settings = settings
        self._upstreams = upstreams
        self._balancer = Balancer(upstreams)
        self._client = client
        self._metrics = metrics
        self._num_in_flight = 0

    async def run(self, inbound: Inbound, scope: Scope, receive: Receive, send: Send, timeout_s: float | None) -> None:
        """Answer `inbound`.

        Args:
            timeout_s: seconds until the client's deadline, if it has one.
        Raises:
            ServiceError: nothing was sent yet, or half a body that is not an event stream.
            ClientDisconnect: the client left; the service was told.
        """
        left_s = min(self._settings.total_timeout_s, timeout_s or self._settings.total_timeout_s)
        ends_at = asyncio.get_running_loop().time() + left_s
        relay = Relay(scope, send)
        with self._admitted(inbound):
            try:
                async with cancelled_on_disconnect(receive), _until(ends_at):
                    await self._exchange(inbound, relay)
            except ServiceError as error:
                if not isinstance(error, _COUNTED_BY_ATTEMPT):
                    self._metrics.upstream_errors.labels(inbound.service, error.code).inc()
                log.warning("forward_failed", upstream=inbound.service, code=error.code, reason=error.message)
                await relay.finish(error)
            except asyncio.CancelledError as cancelled:
                await relay.finish_cancelled(cancelled)

    @contextlib.contextmanager
    def _admitted(self, inbound: Inbound) -> Iterator[None]:
        if self._num_in_flight >= self._settings.max_in_flight:
            raise OverloadedError("The gateway serves as many requests as it may", retry_after_s=1)
        gauge = self._metrics.in_flight.labels(inbound.service)
        self._num_in_flight += 1
        gauge.inc()
        try:
            yield
        finally:
            self._num_in_flight -= 1
            gauge.dec()

    async def _exchange(self, inbound: Inbound, relay: Relay) -> None:
        replica, answer = await self._open(inbound)
        try:
            await relay.copy(answer)
        finally:
            answer.close()
            replica.num_in_flight -= 1

    async def _open(self, inbound: Inbound) -> tuple[Replica, Answer]:
        """The first answer worth passing on, and the replica it is from, which counts it as in flight."""
        connect_until = asyncio.get_running_loop().time() + self._settings.connect_timeout_s
        failure: ServiceError | None = None
        tried: list[Replica] = []
        while (replica := self._balancer.choose(replicas := self._balancer.candidates(inbound), tried)) is not None:
            if tried:
                self._metrics.retries.labels(inbound.service).inc()
            tried.append(replica)
            is_last = len(tried) >= len(replicas)
            try:
                answer = await self._attempt(inbound, replica, _share(connect_until, is_last=is_last))
            except UpstreamUnavailableError as error:
                failure = failure or error
                continue
            except UpstreamDroppedError as error:
                if isinstance(failure, UpstreamDroppedError):
                    raise
                failure = error
                continue
            if is_last or not answer.is_not_ready:
                return replica, answer
            replica.num_in_flight -= 1
        raise failure or UpstreamUnavailableError(f"The {inbound.service} service has no address", retry_after_s=1)

    async def _attempt(self, inbound: Inbound, replica: Replica, connect_s: float) -> Answer:
        replica.num_in_flight += 1
        try:
            answer = await self._client.send(inbound, replica, connect_s)
        except BaseException as error:
            replica.num_in_flight -= 1
            if isinstance(error, _COUNTED_BY_ATTEMPT):
                self._metrics.upstream_errors.labels(inbound.service, error.code).inc()
            if isinstance(error, UpstreamUnavailableError):
                self._upstreams.note_state(replica, ReplicaState.DOWN)
                log.warning("replica_unreachable", upstream=inbound.service, address=replica.origin.address)
            raise
        if answer.is_not_ready:
            self._upstreams.note_state(replica, ReplicaState.STARTING)
        self._note(inbound, answer)
        return answer

    def _note(self, inbound: Inbound, answer: Answer) -> None:
        self._metrics.upstream_requests.labels(inbound.service, str(answer.status)).inc()
        self._metrics.first_byte.labels(inbound.service).observe(time.perf_counter() - inbound.arrived_at)


def _share(until: float, *, is_last: bool) -> float:
    """Seconds for one attempt to connect: half of what is left, so that one dead address leaves time for the others."""
    left_s = max(0.001, until - asyncio.get_running_loop().time())
    return left_s if is_last else left_s / 2


@contextlib.asynccontextmanager
async def _until(ends_at: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(ends_at):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError("The request took longer than it may") from error
