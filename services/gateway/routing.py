"""Where a request goes: is the model right for the path, and which replica of the service takes it.

Pure decisions over `Upstreams`; no I/O. The path fixes the service; the model is only looked at to explain a mistake.
"""

import re
from collections.abc import Collection
from itertools import count

from pydantic import BaseModel, ValidationError

from services.gateway.inbound import Inbound
from services.gateway.paths import ADMIN_PATHS, PATHS_OF_TASK, TASK_OF_SERVICE, Service
from services.gateway.upstreams import Replica, ReplicaState, Upstreams
from shared.errors import InvalidRequestError

_MODEL_KEY = b'"model"'
_MODEL_VALUE = re.compile(rb'\s*:\s*"([^"\\]*)"')


class _NamesModel(BaseModel):
    model: str | None = None


def check_model(inbound: Inbound, upstreams: Upstreams) -> None:
    """Refuse a request whose model belongs to another task than its path.

    The body is parsed only if its bytes show a key "model" with the name of another service's model (it may be inside something
    else, a tool's schema say). A name that is unknown, or written with escapes, is left to the service, which answers 404; a body
    that is not JSON is left to it too.

    Raises:
        InvalidRequestError: names the model's task and the path for it.
    """
    if inbound.path in ADMIN_PATHS or not _may_name_other_task(inbound, upstreams):
        return
    try:
        name = _NamesModel.model_validate_json(inbound.body).model
    except ValidationError:
        return
    service = None if name is None else upstreams.service_of_model(name)
    if service is not None and service is not inbound.service:
        task = TASK_OF_SERVICE[service]
        raise InvalidRequestError(
            f"Model {name!r} has the task {task!r} and is used with {PATHS_OF_TASK[task]}, not {inbound.path}",
            param="model",
        )


class Balancer:
    """Chooses replicas: ready ones first, then the fewest requests in flight, ties in turn."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._turn = count()

    def choose(self, service: Service, tried: Collection[Replica]) -> Replica | None:
        """The replica to try next, or None when all were tried.

        A service without a ready replica is tried all the same, best state first: what is known may be a second old, and so
        traffic resumes with the first request that gets through.
        """
        replicas = [replica for replica in self._upstreams.replicas(service) if replica not in tried]
        if not replicas:
            return None
        start = next(self._turn) % len(replicas)
        return min(replicas[start:] + replicas[:start], key=_cost)


_ORDER = {state: position for position, state in enumerate(ReplicaState)}


def _cost(replica: Replica) -> tuple[int, int]:
    return _ORDER[replica.state], replica.num_in_flight


def _may_name_other_task(inbound: Inbound, upstreams: Upstreams) -> bool:
    at = inbound.body.find(_MODEL_KEY)
    while at >= 0:
        value = _MODEL_VALUE.match(inbound.body, at + len(_MODEL_KEY))
        if value is not None:
            service = upstreams.service_of_model(value[1].decode("utf-8", "replace"))
            if service is not None and service is not inbound.service:
                return True
        at = inbound.body.find(_MODEL_KEY, at + len(_MODEL_KEY))
    return False
