"""What the images and the compose files promise, read off the files, so that it is checked where no engine is.

That they work is shown by `make test-containers`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.gateway.settings import GatewaySettings
from shared.settings.base import ServiceSettings
from tools.stack.service import MODELS, PORTS, trivium_services

ROOT = Path(__file__).resolve().parents[2]
SERVICES = sorted(PORTS)
DOCKERFILES = [*(f"services/{name}/Dockerfile" for name in SERVICES), "tools/prepare_models/Dockerfile"]


class Loader(yaml.SafeLoader):
    """Reads compose's own tag too: `!reset` becomes None."""


Loader.add_constructor("!reset", lambda _loader, _node: None)


def read_compose(name: str) -> Any:
    return yaml.load((ROOT / name).read_text(), Loader)["services"]


def read_stages(dockerfile: str) -> list[list[str]]:
    """The instructions of each stage, without comments, lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / dockerfile).read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [stage.splitlines() for stage in re.split(r"^(?=FROM )", text, flags=re.MULTILINE)]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_have_two_stages_on_one_base_and_no_root(name: str) -> None:
    arguments, environment, final = read_stages(name)
    assert arguments[0] == "ARG BASE=python:3.11-slim-bookworm"
    assert environment[0] == "FROM ${BASE} AS environment"
    assert final[0] == "FROM ${BASE}"
    assert "USER 10001" in final
    assert final[-1].startswith('CMD ["python", "-m", ')
    # Such a line makes the builder fetch its own front end from a registry.
    assert "syntax=" not in (ROOT / name).read_text().split("\n")[0]


@pytest.mark.parametrize("service", SERVICES)
def test_services_say_when_they_are_ready_on_their_port(service: str) -> None:
    final = read_stages(f"services/{service}/Dockerfile")[-1]
    (health,) = [line for line in final if line.startswith("HEALTHCHECK")]
    assert f"'127.0.0.1', {PORTS[service]}," in health
    assert "'/ready'" in health
    assert f"EXPOSE {PORTS[service]}" in final
    assert any(f"TRIVIUM_{service.upper()}_HOST=0.0.0.0" in line for line in final)


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_holds_its_own_service_only(service: str) -> None:
    final = read_stages(f"services/{service}/Dockerfile")[-1]
    sources = re.findall(r"^COPY (services/\S+)", "\n".join(final), re.MULTILINE)
    assert sources == ["services/__init__.py", f"services/{service}"]


def test_the_gateway_installs_no_torch() -> None:
    environment = read_stages("services/gateway/Dockerfile")[1]
    assert re.findall(r'"\.\[(.*)\]"', "".join(environment)) == ["gateway"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["gateway"]]
    assert not [each for each in wanted if re.match(r"(torch|trivium)\b", each)]


def test_images_with_a_model_share_the_environment_word_for_word() -> None:
    environments = [read_stages(f"services/{service}/Dockerfile")[:2] for service in MODELS]
    assert environments[0] == environments[1] == environments[2]
    assert '".[generator,embedder,reranker]"' in "".join(environments[0][1])


def test_what_images_copy_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for dockerfile in DOCKERFILES:
        copies = [line.split()[1:-1] for stage in read_stages(dockerfile) for line in stage if line.startswith("COPY")]
        sources = {source.split("/")[0] for copy in copies if "--from" not in copy[0] for source in copy}
        assert sources <= sent, dockerfile


def test_a_gpu_is_reserved_for_each_model_and_taken_back_without_one() -> None:
    services = read_compose("docker-compose.yml")
    has_gpu = {name for name, service in services.items() if "deploy" in service}
    assert has_gpu == set(MODELS)
    for name in MODELS:
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
    assert {
        name: service["deploy"] for name, service in read_compose("deploy/compose/cpu.yml").items()
    } == dict.fromkeys(MODELS)


def test_only_the_gateway_is_reached_from_outside_and_every_service_can_be_scaled() -> None:
    services = read_compose("docker-compose.yml")
    assert {name for name, service in services.items() if "ports" in service} == {"gateway"}
    assert services["gateway"]["ports"] == ["${TRIVIUM_BIND:-127.0.0.1}:${TRIVIUM_PORT:-8000}:8000"]
    assert not [name for name, service in services.items() if "container_name" in service]


def test_the_gateway_is_told_where_the_services_are() -> None:
    environment = read_compose("docker-compose.yml")["gateway"]["environment"]
    assert environment == {f"TRIVIUM_GATEWAY_{name.upper()}_URL": f"http://{name}:{PORTS[name]}" for name in MODELS}
    assert set(environment) <= {f"TRIVIUM_GATEWAY_{name.upper()}" for name in GatewaySettings.model_fields}


@pytest.mark.parametrize(("service", "model"), MODELS.items())
def test_services_wait_for_the_embedded_models_and_only_read_them(service: str, model: str) -> None:
    compose = read_compose("docker-compose.yml")[service]
    name = f"TRIVIUM_{service.upper()}_MODEL"
    assert compose["environment"][name] == f"${{{name}:-/models/{model}}}"
    assert compose["depends_on"] == {"models": {"condition": "service_completed_successfully"}}
    assert "models:/models:ro" in compose["volumes"]


def test_the_containers_serve_the_same_demo_adapters_as_make_up() -> None:
    name = "TRIVIUM_GENERATOR_LORA"
    (generator, *_) = trivium_services({}, Path("models"), num_cores=1)
    served = read_compose("docker-compose.yml")["generator"]["environment"][name]
    assert served == f"${{{name}-{generator.environment[name]}}}"
    assert "COPY examples/adapters examples/adapters" in read_stages("services/generator/Dockerfile")[-1]


def test_the_demo_of_images_is_the_same_as_make_ups() -> None:
    services = read_compose("deploy/compose/vision.yml")
    made = {service.name: service.environment for service in trivium_services({}, Path("/models"), num_cores=1)}
    name = "TRIVIUM_GENERATOR_MODEL"
    assert services["vision"]["environment"][name] == made["vision"][name]
    limit = "TRIVIUM_GATEWAY_GENERATOR_MAX_BODY_BYTES"
    assert services["gateway"]["environment"] == {
        "TRIVIUM_GATEWAY_GENERATOR_URL": "http://generator:8001,http://vision:8001",
        limit: made["gateway"][limit],
    }
    hardened = ("init", "restart", "stop_grace_period", "read_only", "tmpfs", "cap_drop", "security_opt", "volumes")
    embedder = read_compose("docker-compose.yml")["embedder"]
    assert {key: services["vision"][key] for key in hardened} == {key: embedder[key] for key in hardened}


def test_containers_have_time_to_finish_their_requests() -> None:
    grace_s = ServiceSettings.model_fields["shutdown_grace_s"].default
    for service in read_compose("docker-compose.yml").values():
        assert int(service["stop_grace_period"].removesuffix("s")) >= grace_s + 5


def test_without_an_engine_the_trial_says_so_and_succeeds(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "tests.containers"]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout == "skipped: there is no docker command here\n"


def test_an_engine_that_does_not_answer_is_a_reason_too(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n")
    docker.chmod(0o755)
    command = [sys.executable, "-m", "tests.containers"]
    environ = {**os.environ, "PATH": str(tmp_path)}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout == "skipped: no container engine answers (Cannot connect to the daemon)\n"
