"""Settings of the reranker, each declared once; flags, environment names and `--help` come from here.

Read by `__main__`, never written.
"""

from typing import Literal

from pydantic import Field

from shared.settings.base import settings_config
from shared.settings.encoder import EncoderSettings


class RerankerSettings(EncoderSettings):
    """What `python -m services.reranker` takes."""

    model_config = settings_config("reranker")

    port: int = Field(8003, ge=0, le=65535, description="TCP port to listen on; 0 for any free one.")
    score_type: Literal["bi-encoder"] = Field(
        "bi-encoder", description="How query and document are compared; bi-encoder: cosine of their embeddings."
    )
    max_documents: int = Field(1000, ge=1, description="Documents in one request; more are answered 400.")
