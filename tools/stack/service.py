"""What the launcher starts: one `Service` for each of Trivium's processes, with the shares and defaults of a single machine.

Built by __main__, which hands the services to the launch. Knows every service's port and settings, starts nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

MODELS = {"generator": "smollm2-135m-instruct", "embedder": "all-minilm-l6-v2", "reranker": "minilm-reranker"}
VISION_MODEL = "smollm2-135m-vision"
"""What a second generator serves beside the embedded one."""
ADAPTERS = ("pirate", "json")
"""Demo adapters of the embedded generator, by name; each is a folder of that name."""
ADAPTERS_DIR = Path("examples/adapters")
PORTS = {"generator": 8001, "embedder": 8002, "reranker": 8003, "gateway": 8000}
VISION_PORT = 8004
IMAGES_BODY_BYTES = str(64 * 2**20)
"""What the vision generator takes of its own, and the gateway therefore lets through."""


@dataclass(frozen=True)
class Service:
    """A program to run and where it listens; `environment` is all that it gets."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    host: str
    port: int

    @property
    def local_host(self) -> str:
        """How this machine reaches the service, also if it listens on all interfaces."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        host = self.local_host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def trivium_services(environ: Mapping[str, str], models_dir: Path, num_cores: int) -> list[Service]:
    """The four services and a second generator, which sees images; the gateway last.

    A `TRIVIUM_…` variable in `environ` wins over what is set here for a single machine: the embedded models, shares of
    the cores, and logs made for reading. The demo adapters fit the embedded generator only and are not served with another,
    nor is the demo of images, which has that generator's settings otherwise; `TRIVIUM_VISION_PORT` is its port.

    Raises:
        ValueError: a port in `environ` is not a number.
    """
    # Embedding and reranking are short and come before generation, so their threads rarely run beside its own.
    num_threads = {"generator": num_cores, "embedder": max(1, num_cores // 2), "reranker": max(1, num_cores // 2)}
    settings = {
        name: {"MODEL": str(models_dir / model), "NUM_THREADS": str(num_threads[name])}
        for name, model in MODELS.items()
    }
    is_embedded = not environ.get("TRIVIUM_GENERATOR_MODEL")
    if is_embedded and not environ.get("TRIVIUM_GENERATOR_LORA"):
        # Room for 16 of rank 64, as by default, takes twice the memory of the model.
        settings["generator"] |= {"LORA": ",".join(_demo_adapters()), "MAX_LORAS": "4"}
    services = [_service(name, environ, settings[name]) for name in MODELS]
    urls = {f"{service.name.upper()}_URL": service.url for service in services}
    if is_embedded:
        vision = _vision(environ, models_dir, num_cores)
        services.append(vision)
        urls |= {
            "GENERATOR_URL": f"{urls['GENERATOR_URL']},{vision.url}",
            "GENERATOR_MAX_BODY_BYTES": IMAGES_BODY_BYTES,
        }
    return [*services, _service("gateway", environ, urls)]


def _vision(environ: Mapping[str, str], models_dir: Path, num_cores: int) -> Service:
    own = {"LORA", "LORA_ROOT", "LORA_PRELOAD", "ALLOW_RUNTIME_LORA", "SERVED_MODEL_NAME", "MODEL", "PORT"}
    left = {key: value for key, value in environ.items() if key not in {f"TRIVIUM_GENERATOR_{name}" for name in own}}
    port = environ.get("TRIVIUM_VISION_PORT") or str(VISION_PORT)
    settings = {"MODEL": str(models_dir / VISION_MODEL), "NUM_THREADS": str(num_cores), "PORT": port}
    return replace(_service("generator", left, settings), name="vision")


def _demo_adapters() -> list[str]:
    folders = {name: ADAPTERS_DIR / name for name in ADAPTERS}
    return [f"{name}={folder}" for name, folder in folders.items() if folder.is_dir()]


def _service(name: str, environ: Mapping[str, str], settings: Mapping[str, str]) -> Service:
    prefix = f"TRIVIUM_{name.upper()}_"
    defaults = {"HOST": "127.0.0.1", "PORT": str(PORTS[name]), "LOG_FORMAT": "console", **settings}
    # An empty variable counts as none, as it does for the services.
    environment = {prefix + key: value for key, value in defaults.items()} | {k: v for k, v in environ.items() if v}
    port = environment[f"{prefix}PORT"]
    if not port.isdecimal():
        raise ValueError(f"{prefix}PORT = {port!r} is not a port")
    command = [sys.executable, "-m", f"services.{name}"]
    return Service(name, command, environment, environment[f"{prefix}HOST"], int(port))
