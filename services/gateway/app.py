"""Composition root of the gateway: builds every part, joins them, and owns the two background tasks.

Called by `__main__` and by tests, which bring their own way of looking up names.
"""

import contextlib
import functools
from collections.abc import AsyncIterator

from fastapi import FastAPI

from services.gateway.auth import UpstreamAuth
from services.gateway.clients import ServiceClient
from services.gateway.forward import Forwarder
from services.gateway.metrics import GatewayMetrics
from services.gateway.paths import Service
from services.gateway.prober import Prober
from services.gateway.resolver import Resolve, Resolver, resolve_name
from services.gateway.routes import ForwardRoute, forward_router, models_router
from services.gateway.settings import GatewaySettings
from services.gateway.upstreams import ReplicaState, Target, Upstreams
from shared.http.app import Readiness, make_app
from shared.http.background import running
from shared.http.client import HttpClient, Timeouts
from shared.http.lifecycle import Lifecycle
from shared.observability.metrics import Metrics


def build_app(settings: GatewaySettings, lifecycle: Lifecycle, resolve: Resolve = resolve_name) -> FastAPI:
    """The gateway's application."""
    metrics = Metrics("gateway")
    own_metrics = GatewayMetrics(metrics)
    auth = UpstreamAuth(settings)
    http = HttpClient(Timeouts(settings.connect_timeout_s, settings.read_timeout_s))
    upstreams = Upstreams({service: [Target.parse(url) for url in settings.urls(service)] for service in Service})
    prober = Prober(upstreams, http, auth, settings.probe_timeout_s)
    resolver = Resolver(upstreams, settings.resolve_interval_s, resolve)
    forwarder = Forwarder(settings, upstreams, ServiceClient(http, auth), own_metrics)

    for service in Service:
        for state in ReplicaState:
            count = functools.partial(upstreams.num_replicas, service, state)
            own_metrics.replicas.labels(service, state).set_function(count)

    def readiness() -> Readiness:
        states = {service: upstreams.state(service) for service in Service}
        return Readiness(
            ready=all(state is ReplicaState.READY for state in states.values()),
            parts={service.value: state.value for service, state in states.items()},
        )

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        resolver.set_literals()
        async with (
            http,
            running("resolver", resolver.run(), lifecycle),
            running("prober", prober.run(settings.probe_interval_s), lifecycle),
        ):
            yield

    return make_app(
        settings,
        lifecycle,
        metrics,
        readiness=readiness,
        lifespan=lifespan,
        routers=[forward_router(ForwardRoute(upstreams, forwarder)), models_router(upstreams, prober, auth)],
    )
