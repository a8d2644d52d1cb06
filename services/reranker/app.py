"""The reranker put together: the only place that knows all of its parts.

Called by `__main__` and by tests. Torch is imported by the model thread, when it loads.
"""

from fastapi import FastAPI

from services.reranker.api import rerank_router
from services.reranker.metrics import RerankerMetrics
from services.reranker.scorers import SCORERS
from services.reranker.settings import RerankerSettings
from shared.http.app import make_app
from shared.http.encoder_handle import EncoderHandle, EncoderModel
from shared.http.lifecycle import Lifecycle
from shared.text.preparer import TextPreparer


def make_reranker_app(settings: RerankerSettings, lifecycle: Lifecycle) -> FastAPI:
    """The application; its model is loaded while it runs."""

    def load() -> EncoderModel[TextPreparer]:
        from shared.modeling.text_encoder import load_text_encoder  # brings torch in

        return load_text_encoder(settings)

    metrics = RerankerMetrics()
    handle = EncoderHandle(settings, "rerank", load, metrics.batches, lifecycle)
    scorer = SCORERS[settings.score_type]
    return make_app(
        settings,
        lifecycle,
        metrics.base,
        readiness=handle.readiness,
        lifespan=handle.lifespan,
        routers=[rerank_router(handle, scorer, max_documents=settings.max_documents), handle.models_router()],
    )
