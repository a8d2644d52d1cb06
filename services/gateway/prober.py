"""Asks every replica again and again whether it is ready, and what it serves.

Runs as one task of the lifespan; writes through `Upstreams`. It is what brings a replica back that was marked down.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from services.gateway.auth import UpstreamAuth
from services.gateway.paths import Service
from services.gateway.upstreams import Replica, ReplicaState, Upstreams
from shared.contracts.models import ModelEntry
from shared.errors import DeadlineExceededError, ServiceError
from shared.http.client import HttpClient, OutgoingRequest
from shared.observability.logging import get_logger

log = get_logger(__name__)
_MAX_BYTES = 8 * 2**20

MODELS_AGE_S = 10.0
"""How old may be what is known of a replica's models: adapters come and go while it runs."""


class Prober:
    """Looks at replicas, each look bounded by `timeout_s`."""

    def __init__(self, upstreams: Upstreams, http: HttpClient, auth: UpstreamAuth, timeout_s: float) -> None:
        self._upstreams = upstreams
        self._http = http
        self._auth = auth
        self._timeout_s = timeout_s
        self._asked_at: WeakKeyDictionary[Replica, float] = WeakKeyDictionary()

    async def run(self, interval_s: float) -> None:
        """Look at all replicas once every interval, for ever."""
        while True:
            looks = [self._probe(service, replica) for service, replica in self._upstreams.all_replicas()]
            await asyncio.gather(asyncio.sleep(interval_s), *looks)

    async def refresh_models(self, authorization: bytes | None) -> None:
        """Ask every ready replica what it serves; one that does not answer keeps what it said before."""
        ready = [replica for _, replica in self._upstreams.all_replicas() if replica.state is ReplicaState.READY]
        await asyncio.gather(*(self._ask_models(replica, authorization) for replica in ready))

    async def _probe(self, service: Service, replica: Replica) -> None:
        before = replica.state
        try:
            status, body = await self._get(replica, b"/ready", None)
        except DeadlineExceededError:
            self._upstreams.note_timeout(replica)
        except ServiceError:
            self._upstreams.note_state(replica, ReplicaState.DOWN)
        else:
            self._upstreams.note_state(replica, _state(status, body))
        if replica.state is not before:
            log.info("replica_state", upstream=service, address=replica.origin.address, state=replica.state)
        if replica.state is ReplicaState.READY and (before is not ReplicaState.READY or self._is_stale(replica)):
            await self._ask_models(replica, self._auth.own)

    def _is_stale(self, replica: Replica) -> bool:
        asked_at = self._asked_at.get(replica)
        return not replica.models or asked_at is None or time.monotonic() - asked_at > MODELS_AGE_S

    async def _ask_models(self, replica: Replica, authorization: bytes | None) -> None:
        self._asked_at[replica] = time.monotonic()
        try:
            status, body = await self._get(replica, b"/v1/models", authorization)
        except ServiceError:
            return
        models = _models(body) if status == 200 else None
        if models is not None:
            self._upstreams.note_models(replica, models)

    async def _get(self, replica: Replica, target: bytes, authorization: bytes | None) -> tuple[int, bytes]:
        headers = [] if authorization is None else [(b"authorization", authorization)]
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._http.send(replica.origin, OutgoingRequest("GET", target, headers))
                try:
                    return response.status, await response.read_all(_MAX_BYTES)
                finally:
                    response.close()
        except TimeoutError:
            raise DeadlineExceededError("did not answer a probe in time") from None


def _state(status: int, body: bytes) -> ReplicaState:
    if status == 200:
        return ReplicaState.READY
    if status != 503:
        return ReplicaState.DOWN
    return ReplicaState.DRAINING if b'"draining"' in body else ReplicaState.STARTING


def _models(body: bytes) -> Sequence[ModelEntry] | None:
    """The entries of a model list, None if it is none; fields that a newer service may add are left out."""
    try:
        rows: Any = json.loads(body)["data"]
        return [
            ModelEntry.model_validate({name: row[name] for name in ModelEntry.model_fields if name in row})
            for row in rows
        ]
    except (ValueError, LookupError, TypeError, ValidationError):
        return None
