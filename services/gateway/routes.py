"""The gateway's paths: those that are forwarded, and the merged list of models.

Forwarding routes are plain ASGI applications, not FastAPI functions: the body is never parsed and the answer never rebuilt.
"""

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from services.gateway.auth import UpstreamAuth
from services.gateway.forward import Forwarder
from services.gateway.inbound import Inbound
from services.gateway.paths import GET_PATHS, POST_PATHS
from services.gateway.prober import Prober
from services.gateway.routing import check_adapter_name, check_model
from services.gateway.upstreams import Upstreams
from shared.contracts.models import ModelEntry, ModelList
from shared.errors import ModelNotFoundError
from shared.http.app import json_response
from shared.http.deadline import seconds_left


class ForwardRoute:
    """The endpoint of every forwarded path."""

    def __init__(self, upstreams: Upstreams, forwarder: Forwarder) -> None:
        self._upstreams = upstreams
        self._forwarder = forwarder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        timeout_s = seconds_left(Headers(scope=scope))
        inbound = await Inbound.read(scope, receive)
        check_model(inbound, self._upstreams)
        check_adapter_name(inbound, self._upstreams)
        await self._forwarder.run(inbound, scope, receive, send, timeout_s)


def forward_router(route: ForwardRoute) -> APIRouter:
    """The paths of the services."""
    router = APIRouter()
    for methods, paths in (("POST", POST_PATHS), ("GET", GET_PATHS)):
        for path in paths:
            router.add_route(path, route, methods=[methods], include_in_schema=False)  # type: ignore[arg-type]
    return router


def models_router(upstreams: Upstreams, prober: Prober, auth: UpstreamAuth) -> APIRouter:
    """`/v1/models` of all services as one; asked for anew each time, so that an adapter shows as soon as it is loaded."""
    router = APIRouter()

    async def current(request: Request) -> list[ModelEntry]:
        given = request.headers.get("authorization")
        own = auth.authorization("/v1/models", given.encode("latin-1") if given is not None else None)
        await prober.refresh_models(own)
        return upstreams.ready_models()

    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:
        return json_response(ModelList(data=await current(request)), exclude_none=True)

    @router.get("/v1/models/{name:path}")
    async def get_model(request: Request, name: str) -> Response:
        for model in await current(request):
            if model.id == name:
                return json_response(model, exclude_none=True)
        raise ModelNotFoundError(f"The model {name!r} does not exist", param="model")

    return router
