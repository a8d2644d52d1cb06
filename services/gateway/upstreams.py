"""What the gateway knows of the services: their replicas, the state of each, and which models they serve.

The one writer of upstream health. The prober and the forwarding code report what they saw; routing reads. Does no I/O itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from services.gateway.paths import Service
from shared.contracts.models import ModelEntry
from shared.http.client import Origin

_TIMEOUTS_BEFORE_DOWN = 2  # one slow answer is a busy replica, two in a row are none


class ReplicaState(StrEnum):
    """Best first: a service is in the best state of its replicas."""

    READY = "ready"
    STARTING = "starting"
    DRAINING = "draining"
    DOWN = "down"


@dataclass(frozen=True)
class Target:
    """One configured URL; its host name may stand for several addresses."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Target":
        """The target of `url`, which the settings have checked."""
        parts = urlsplit(url)
        return cls(parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


@dataclass(eq=False)
class Replica:
    """One address of a service. `Upstreams` fills all but `num_in_flight`, which the forwarding code counts."""

    origin: Origin
    state: ReplicaState = ReplicaState.STARTING
    num_in_flight: int = 0
    num_timeouts: int = 0
    models: tuple[ModelEntry, ...] = field(default=())
    model_names: frozenset[str] = frozenset()


class Upstreams:
    """The replicas of each service, in a stable order."""

    def __init__(self, targets: Mapping[Service, Sequence[Target]]) -> None:
        self.targets = targets
        self._replicas: dict[Service, dict[Target, list[Replica]]] = {
            service: {target: [] for target in targets[service]} for service in Service
        }
        self._service_of_model: dict[str, Service] = {}

    def replicas(self, service: Service) -> list[Replica]:
        """All replicas of `service`."""
        return [replica for replicas in self._replicas[service].values() for replica in replicas]

    def all_replicas(self) -> list[tuple[Service, Replica]]:
        """The replicas of all services."""
        return [(service, replica) for service in Service for replica in self.replicas(service)]

    def ready_models(self) -> list[ModelEntry]:
        """What the ready replicas serve, each name once, in the order of the services."""
        models: dict[str, ModelEntry] = {}
        for _, replica in self.all_replicas():
            if replica.state is ReplicaState.READY:
                for model in replica.models:
                    models.setdefault(model.id, model)
        return list(models.values())

    def state(self, service: Service) -> ReplicaState:
        """The best state of the service's replicas; down if it has none."""
        order = list(ReplicaState)
        return min((replica.state for replica in self.replicas(service)), key=order.index, default=ReplicaState.DOWN)

    def num_replicas(self, service: Service, state: ReplicaState) -> int:
        """How many replicas of `service` are in `state`."""
        return sum(replica.state is state for replica in self.replicas(service))

    def service_of_model(self, name: str) -> Service | None:
        """The service that serves, or last served, a model called `name`."""
        return self._service_of_model.get(name)

    # --- reports ---

    def set_addresses(self, service: Service, target: Target, addresses: Iterable[str]) -> None:
        """The name of `target` now stands for `addresses`.

        A replica whose address stays keeps its state; a new one counts as starting until it was probed.
        """
        old = {replica.origin.address: replica for replica in self._replicas[service][target]}
        self._replicas[service][target] = [
            old.get(address) or Replica(Origin(target.scheme, target.host, target.port, address))
            for address in dict.fromkeys(addresses)
        ]
        self._note_models()

    def note_state(self, replica: Replica, state: ReplicaState) -> None:
        """`replica` was seen to be in `state`; what it serves stays known, so that a wrong path is still noticed."""
        replica.state = state
        replica.num_timeouts = 0

    def note_timeout(self, replica: Replica) -> None:
        """`replica` did not answer a probe in time."""
        replica.num_timeouts += 1
        if replica.num_timeouts >= _TIMEOUTS_BEFORE_DOWN:
            replica.state = ReplicaState.DOWN

    def note_models(self, replica: Replica, models: Iterable[ModelEntry]) -> None:
        """`replica` said that it serves `models`."""
        replica.models = tuple(models)
        replica.model_names = frozenset(model.id for model in replica.models)
        self._note_models()

    def _note_models(self) -> None:
        known: dict[str, Service] = {}
        for service, replica in self.all_replicas():
            for model in replica.models:
                known.setdefault(model.id, service)
        self._service_of_model = known
