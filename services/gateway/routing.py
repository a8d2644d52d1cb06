"""Where a request goes: is the model right for the path, and which replica of the service takes it.

Pure decisions over `Upstreams`; no I/O. The path fixes the service; the model is looked at to explain a mistake, and where
the replicas of a service do not all serve the same.
"""

import re
from collections.abc import Collection, Iterator
from itertools import count

from pydantic import BaseModel, ValidationError

from services.gateway.inbound import Inbound
from services.gateway.paths import ADMIN_PATHS, LOAD_ADAPTER_PATH, PATHS_OF_TASK, TASK_OF_SERVICE
from services.gateway.upstreams import Replica, ReplicaState, Upstreams
from shared.contracts.models import Task
from shared.errors import InvalidRequestError

_MODEL_KEY = b'"model"'
_LORA_KEY = b'"lora"'
_VALUE = re.compile(rb'\s*:\s*"([^"\\]*)"')


class _NamesModel(BaseModel):
    model: str | None = None


class _NamesAdapter(BaseModel):
    lora_name: str | None = None


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
    task = None if name is None else _other_task(name, inbound, upstreams)
    if task is not None:
        raise InvalidRequestError(
            f"Model {name!r} has the task {task!r} and is used with {PATHS_OF_TASK[task]}, not {inbound.path}",
            param="model",
        )


def check_adapter_name(inbound: Inbound, upstreams: Upstreams) -> None:
    """Refuse to load an adapter under the name of another service's model, which clients could then not tell apart.

    Raises:
        InvalidRequestError: names the model's task.
    """
    if inbound.path != LOAD_ADAPTER_PATH:
        return
    try:
        name = _NamesAdapter.model_validate_json(inbound.body).lora_name
    except ValidationError:
        return
    task = None if name is None else _other_task(name, inbound, upstreams)
    if task is not None:
        raise InvalidRequestError(f"lora_name: {name!r} is a model of the task {task!r}", param="lora_name")


class Balancer:
    """Chooses replicas: ready ones first, then the fewest requests in flight, ties in turn."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._turn = count()

    def candidates(self, inbound: Inbound) -> list[Replica]:
        """The replicas that may answer: all of the service, or where some of them are known to serve what is named, those.

        Names are what the body's bytes show beside a key "model" or "lora". Where no replica is known to serve any of them, as
        where there is none, the model of the first replica is meant; so a name that nobody serves is answered 404 there. A replica
        of which nothing is known yet may serve anything.
        """
        replicas = self._upstreams.replicas(inbound.service)
        if len({replica.model_names for replica in replicas}) < 2:
            return replicas
        known = frozenset().union(*(replica.model_names for replica in replicas))
        names = [name for key in (_LORA_KEY, _MODEL_KEY) for name in _values(inbound.body, key) if name in known]
        for name in names or [next(replica.models[0].id for replica in replicas if replica.models)]:
            if any(name in replica.model_names for replica in replicas):
                replicas = [replica for replica in replicas if name in replica.model_names or not replica.models]
        return replicas

    def choose(self, replicas: Collection[Replica], tried: Collection[Replica]) -> Replica | None:
        """The replica to try next, or None when all were tried.

        Where none is ready they are tried all the same, best state first: what is known may be a second old, and so traffic
        resumes with the first request that gets through.
        """
        left = [replica for replica in replicas if replica not in tried]
        if not left:
            return None
        start = next(self._turn) % len(left)
        return min(left[start:] + left[:start], key=_cost)


_ORDER = {state: position for position, state in enumerate(ReplicaState)}


def _cost(replica: Replica) -> tuple[int, int]:
    return _ORDER[replica.state], replica.num_in_flight


def _may_name_other_task(inbound: Inbound, upstreams: Upstreams) -> bool:
    return any(_other_task(name, inbound, upstreams) is not None for name in _values(inbound.body, _MODEL_KEY))


def _other_task(name: str, inbound: Inbound, upstreams: Upstreams) -> Task | None:
    """The task of the model called `name`, where another service than the path's serves it."""
    service = upstreams.service_of_model(name)
    return None if service is None or service is inbound.service else TASK_OF_SERVICE[service]


def _values(body: bytes, key: bytes) -> Iterator[str]:
    """Strings that stand behind `key` in the bytes of a JSON object or inside of it."""
    at = body.find(key)
    while at >= 0:
        value = _VALUE.match(body, at + len(key))
        if value is not None:
            yield value[1].decode("utf-8", "replace")
        at = body.find(key, at + len(key))
