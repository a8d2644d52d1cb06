"""The gateway's flags, and what follows from them: keys, limits, addresses."""

from typing import Any

import pytest

from services.gateway.auth import UpstreamAuth
from services.gateway.paths import ADMIN_PATHS, GET_PATHS, PATHS_OF_TASK, POST_PATHS, TASK_OF_SERVICE, Service
from services.gateway.settings import GatewaySettings
from services.gateway.upstreams import Target
from shared.settings.base import load_settings

ADMIN = "/v1/load_lora_adapter"
PLAIN = "/v1/completions"


@pytest.mark.parametrize(
    ("flags", "path", "keys"),
    [
        ({}, PLAIN, None),
        ({}, ADMIN, None),
        ({"api_key": "key"}, PLAIN, ["key"]),
        ({"api_key": "key"}, ADMIN, []),
        ({"api_key": "key", "admin_api_key": "admin"}, PLAIN, ["key", "admin"]),
        ({"api_key": "key", "admin_api_key": "admin"}, ADMIN, ["admin"]),
        ({"admin_api_key": "admin"}, PLAIN, None),
        ({"admin_api_key": "admin"}, ADMIN, ["admin"]),
    ],
)
def test_keys_asked_for(flags: dict[str, Any], path: str, keys: list[str] | None) -> None:
    asked = GatewaySettings(**flags).bearer_keys(path)
    assert (None if asked is None else [key.get_secret_value() for key in asked]) == keys


@pytest.mark.parametrize(
    ("flags", "path", "given", "sent"),
    [
        ({}, PLAIN, b"Bearer a", b"Bearer a"),
        ({}, PLAIN, None, None),
        ({}, ADMIN, b"Bearer admin", b"Bearer admin"),
        ({"upstream_api_key": "up"}, PLAIN, b"Bearer a", b"Bearer up"),
        ({"upstream_api_key": "up"}, ADMIN, b"Bearer admin", b"Bearer admin"),
        ({"api_key": "key"}, PLAIN, b"Bearer key", None),
        ({"api_key": "key", "upstream_api_key": "up"}, PLAIN, b"Bearer key", b"Bearer up"),
        ({"api_key": "key", "admin_api_key": "admin"}, ADMIN, b"Bearer admin", b"Bearer admin"),
    ],
)
def test_key_sent_on(flags: dict[str, Any], path: str, given: bytes | None, sent: bytes | None) -> None:
    assert UpstreamAuth(GatewaySettings(**flags)).authorization(path, given) == sent


def test_defaults_and_repeated_urls() -> None:
    settings = load_settings(GatewaySettings, [])
    assert (settings.port, settings.shutdown_grace_s, settings.max_body_bytes) == (8000, 10, 8 * 2**20)
    assert settings.body_limit_bytes("/v1/chat/completions") == 64 * 2**20
    assert settings.body_limit_bytes("/v1/embeddings") == 8 * 2**20
    assert [settings.urls(service) for service in Service] == [
        [f"http://127.0.0.1:{port}"] for port in (8001, 8002, 8003)
    ]
    settings = load_settings(GatewaySettings, ["--embedder-url", "http://a:1", "--embedder-url", "https://b/"])
    assert [Target.parse(url) for url in settings.embedder_url] == [Target("http", "a", 1), Target("https", "b", 443)]
    assert Target.parse("http://[::1]:80") == Target("http", "::1", 80)


def test_urls_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_GATEWAY_GENERATOR_URL", "http://a:1,http://b:2")
    assert load_settings(GatewaySettings, []).generator_url == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize(
    "url", ["a:1", "ftp://a", "http://", "http://a/v1", "http://a?b=c", "http://a:99999", "http://a:b"]
)
def test_bad_urls_are_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_settings(GatewaySettings, ["--reranker-url", url])
    said = capsys.readouterr().err
    assert "--reranker-url" in said
    assert url in said


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(GatewaySettings(api_key="hush", admin_api_key="hush", upstream_api_key="hush"))  # type: ignore[arg-type]


def test_tables_agree() -> None:
    assert not set(POST_PATHS) & set(GET_PATHS)
    assert set(POST_PATHS) > ADMIN_PATHS
    assert set(TASK_OF_SERVICE) == set(Service)
    assert set(PATHS_OF_TASK) == set(TASK_OF_SERVICE.values())
