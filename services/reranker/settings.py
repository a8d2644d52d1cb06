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
    score_type: Literal["auto", "bi-encoder", "cross-encoder", "qwen3-reranker"] = Field(
        "auto",
        description="How query and document are compared. bi-encoder: cosine of their embeddings; cross-encoder: a classifier "
        "that reads both; qwen3-reranker: a generative model that is asked yes or no. auto: by the folder's architecture.",
    )
    activation: Literal["sigmoid", "identity"] | None = Field(
        None, description="What makes a score of a cross-encoder's number; the folder's own unless given."
    )
    max_documents: int = Field(1000, ge=1, description="Documents in one request; more are answered 400.")
