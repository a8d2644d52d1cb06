"""Builds a service's FastAPI application: error handlers, gates, request context, and the three open paths.

Called by each service's `app.py`, which brings its own routes and lifespan. Holds nothing of any one service.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

from fastapi import APIRouter, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from shared.contracts.wire import WireModel
from shared.http.gates import ApiKeyMiddleware, BodyLimitMiddleware
from shared.http.handlers import install_handlers
from shared.http.lifecycle import Lifecycle, LifecycleMiddleware
from shared.http.request_context import RequestContextMiddleware
from shared.observability.metrics import Metrics
from shared.settings.base import ServiceSettings


class Health(WireModel):
    """Body of `/health`: whether to keep this process, and why not."""

    status: Literal["alive", "failed"]
    reason: str | None = None


class Readiness(WireModel):
    """Body of `/ready`: whether requests will be served, and the state of each part by name."""

    ready: bool
    parts: dict[str, str]


def make_app(
    settings: ServiceSettings,
    lifecycle: Lifecycle,
    metrics: Metrics,
    *,
    readiness: Callable[[], Readiness],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    routers: Sequence[APIRouter],
) -> FastAPI:
    """The application of one service.

    Args:
        readiness: asked by `/ready`; a draining service is never ready, whatever it says.
        lifespan: starts and stops what the routes use.
        routers: the service's own paths.
    """
    app = FastAPI(title="Trivium", lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None)
    install_handlers(app)
    all_routers = [_open_paths(lifecycle, metrics, readiness), *routers]
    for router in all_routers:
        app.include_router(router)
    # Starlette runs the middleware that was added last first.
    app.add_middleware(BodyLimitMiddleware, limit_bytes=settings.body_limit_bytes)
    app.add_middleware(ApiKeyMiddleware, keys=settings.bearer_keys)
    app.add_middleware(LifecycleMiddleware, lifecycle=lifecycle)
    app.add_middleware(RequestContextMiddleware, metrics=metrics, paths=_paths(all_routers))
    return app


def json_response(
    body: WireModel, status: int = 200, headers: dict[str, str] | None = None, *, exclude_none: bool = False
) -> Response:
    """A JSON answer straight from a contract, without a second validation.

    Args:
        exclude_none: leave fields that are None out, for clients that expect their absence.
    """
    return Response(
        body.model_dump_json(exclude_none=exclude_none),
        status_code=status,
        headers=headers,
        media_type="application/json",
    )


def _open_paths(lifecycle: Lifecycle, metrics: Metrics, readiness: Callable[[], Readiness]) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        if lifecycle.illness is not None:
            return json_response(Health(status="failed", reason=lifecycle.illness), 503)
        return json_response(Health(status="alive"), exclude_none=True)

    @router.get("/ready")
    async def ready() -> Response:
        state = readiness()
        if lifecycle.is_draining:
            state = Readiness(ready=False, parts={**state.parts, "service": "draining"})
        return json_response(state, 200 if state.ready else 503)

    @router.get("/metrics")
    async def read_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _paths(routers: Sequence[APIRouter]) -> frozenset[str]:
    return frozenset(getattr(route, "path", "") for router in routers for route in router.routes)
