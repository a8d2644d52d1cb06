"""Settings of the embedder, each declared once; flags, environment names and `--help` come from here.

Read by `__main__`, never written.
"""

from pydantic import Field

from shared.settings.base import settings_config
from shared.settings.encoder import EncoderSettings


class EmbedderSettings(EncoderSettings):
    """What `python -m services.embedder` takes."""

    model_config = settings_config("embedder")

    port: int = Field(8002, ge=0, le=65535, description="TCP port to listen on; 0 for any free one.")
    matryoshka: bool = Field(
        False,
        description="Let requests cut vectors to any length (`dimensions`), where the folder does not say that it was trained "
        "for that. Ask the model's card.",
    )
