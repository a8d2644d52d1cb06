"""Entry of the generator service: `python -m services.generator --model FOLDER`.

Reads the settings, starts the API process's application; the application starts the engine process.
"""

import sys
from collections.abc import Sequence

from services.generator.app import build_app
from services.generator.settings import GeneratorSettings
from shared.http.lifecycle import Lifecycle
from shared.http.server import serve
from shared.observability.logging import configure_logging
from shared.settings.base import load_settings
from shared.settings.errors import StartError


def main(argv: Sequence[str]) -> int:
    """Serve until a signal; answers the exit code."""
    settings = load_settings(GeneratorSettings, argv)
    configure_logging("generator", settings.log_level, settings.log_format)
    lifecycle = Lifecycle()
    try:
        app = build_app(settings, lifecycle)
    except StartError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return serve(app, settings, lifecycle)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
