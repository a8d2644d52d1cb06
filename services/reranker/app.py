"""The reranker put together: the only place that knows all of its parts.

Called by `__main__` and by tests. Torch is imported by the model thread, when it loads.
"""

from fastapi import FastAPI

from services.reranker.api import reranker_router
from services.reranker.loading import load_scoring_model
from services.reranker.metrics import RerankerMetrics
from services.reranker.settings import RerankerSettings
from shared.http.app import make_app
from shared.http.encoder_handle import EncoderHandle
from shared.http.lifecycle import Lifecycle


def make_reranker_app(settings: RerankerSettings, lifecycle: Lifecycle) -> FastAPI:
    """The application; its model is loaded while it runs."""

    metrics = RerankerMetrics()
    handle = EncoderHandle(settings, "rerank", lambda: load_scoring_model(settings), metrics.batches, lifecycle)
    return make_app(
        settings,
        lifecycle,
        metrics.base,
        readiness=handle.readiness,
        lifespan=handle.lifespan,
        routers=[reranker_router(handle, max_documents=settings.max_documents), handle.models_router()],
    )
