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
