"""The embedder put together: the only place that knows all of its parts.

Called by `__main__` and by tests. Torch is imported by the model thread, when it loads.
"""

from fastapi import FastAPI

from services.embedder.api import embeddings_router
from services.embedder.cohere import cohere_router
from services.embedder.metrics import EmbedderMetrics
from services.embedder.settings import EmbedderSettings
from shared.http.app import make_app
from shared.http.encoder_handle import EncoderHandle, EncoderModel
from shared.http.lifecycle import Lifecycle
from shared.text.preparer import TextPreparer


def make_embedder_app(settings: EmbedderSettings, lifecycle: Lifecycle) -> FastAPI:
    """The application; its model is loaded while it runs."""

    def load() -> EncoderModel[TextPreparer]:
        from shared.modeling.text_encoder import load_text_encoder  # brings torch in

        return load_text_encoder(settings, is_matryoshka=settings.matryoshka)

    metrics = EmbedderMetrics()
    handle = EncoderHandle(settings, "embed", load, metrics.batches, lifecycle)
    return make_app(
        settings,
        lifecycle,
        metrics.base,
        readiness=handle.readiness,
        lifespan=handle.lifespan,
        routers=[embeddings_router(handle), cohere_router(handle), handle.models_router()],
    )
