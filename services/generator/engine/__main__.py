"""Entry of the engine process: `python -m services.generator.engine SETTINGS_JSON ADDRESS`.

Started by `engine.process`. Sets the thread environment before torch is loaded, builds the engine, runs its loop.
"""

import json
import os
import signal
import sys
import threading
from typing import NoReturn

from services.generator.settings import GeneratorSettings
from shared.observability.logging import configure_logging, get_logger
from shared.settings.errors import StartError
from shared.settings.threads import set_thread_environment

log = get_logger(__name__)


def main() -> NoReturn:
    """Run the engine until it is told to stop."""
    settings = GeneratorSettings.model_construct(**json.loads(sys.argv[1]))
    configure_logging("generator-engine", settings.log_level, settings.log_format)
    num_threads = set_thread_environment(settings.num_threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the API process decides when to stop
    threading.Thread(target=_exit_with_parent, name="parent-watch", daemon=True).start()

    from services.generator.engine.build import build_engine  # loads torch, which reads the environment set above

    try:
        build_engine(settings, num_threads, address=sys.argv[2]).run()
    except StartError as error:
        log.error("engine_cannot_start", reason=str(error))
        _leave(1)
    except Exception as error:
        log.error("engine_failed", reason=f"{type(error).__name__}: {error}", exc_info=error)
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End at once: the thread that watches the parent is blocked in a read and would abort a normal exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_with_parent() -> None:
    """The API process holds the other end of standard input: it is closed when that process is gone, however it went."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
