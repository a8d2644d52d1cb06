"""`python -m services.embedder --model …`: read the settings, open the port, serve until told to stop.

Sets the process up before anything imports torch, and puts nothing together itself: that is `app`.
"""

import sys

from services.embedder.app import make_embedder_app
from services.embedder.settings import EmbedderSettings
from shared.http.lifecycle import Lifecycle
from shared.http.server import serve
from shared.observability.logging import configure_logging
from shared.settings.base import load_settings
from shared.settings.shape_caches import set_shape_cache_environment
from shared.settings.threads import set_thread_environment


def main(argv: list[str]) -> int:
    """Run the service; return the exit code of the process."""
    settings = load_settings(EmbedderSettings, argv)
    configure_logging("embedder", settings.log_level, settings.log_format)
    set_thread_environment(settings.num_threads)
    set_shape_cache_environment()
    lifecycle = Lifecycle()
    return serve(make_embedder_app(settings, lifecycle), settings, lifecycle)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
