"""Settings of the gateway; read once by `__main__`, never written.

Keys: `--api-key` is what clients of the gateway need, `--upstream-api-key` is what the gateway needs at the services, and
`--admin-api-key` is what the two adapter calls need at both.
"""

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from services.gateway.paths import ADMIN_PATHS, SERVICE_OF_PATH, Service
from shared.settings.base import RepeatedStr, ServiceSettings, settings_config


class GatewaySettings(ServiceSettings):
    """Where the services are, how long to wait for them, and which keys are asked for and sent."""

    model_config = settings_config("gateway")

    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on.")
    generator_url: RepeatedStr = Field(
        ["http://127.0.0.1:8001"],
        description="Base URL of the generator, once for each replica; every address of a host name is a replica too.",
    )
    embedder_url: RepeatedStr = Field(["http://127.0.0.1:8002"], description="The same for the embedder.")
    reranker_url: RepeatedStr = Field(["http://127.0.0.1:8003"], description="The same for the reranker.")
    generator_max_body_bytes: int = Field(
        64 * 2**20,
        ge=1024,
        description="Largest accepted body for the generator in bytes, as large as one that takes images reads; the generator "
        "has a limit of its own. For all other paths --max-body-bytes holds.",
    )
    upstream_api_key: SecretStr | None = Field(
        None,
        description="Bearer token sent to the services, if they were started with --api-key. Without it, and without "
        "--api-key here, the client's own token is passed on.",
    )
    admin_api_key: SecretStr | None = Field(
        None,
        description="The generator's --admin-api-key: asked for on the calls that load and unload adapters and passed on "
        "with them. Without it those calls are closed if --api-key is set, and decided by the generator if not.",
    )
    connect_timeout_s: float = Field(
        2.0, gt=0, description="Seconds to find a replica that accepts a connection, all attempts together."
    )
    read_timeout_s: float = Field(
        300.0,
        gt=0,
        description="Seconds to wait for the first byte of an answer, and then for each next one. Answers that are not "
        "streamed have their first byte at their end, so it must exceed the longest generation.",
    )
    total_timeout_s: float = Field(1800.0, gt=0, description="Seconds that a whole request may take, streams included.")
    max_in_flight: int = Field(
        1000, ge=1, description="Requests served at the same time; one more is answered 429. Each holds two sockets."
    )
    probe_interval_s: float = Field(1.0, gt=0, description="Seconds between two looks at each replica's /ready.")
    probe_timeout_s: float = Field(1.0, gt=0, description="Seconds a replica may take to answer a probe.")
    resolve_interval_s: float = Field(
        3.0,
        gt=0,
        description="Seconds between two look-ups of a host name's addresses: how soon a new replica is used.",
    )

    @field_validator("generator_url", "embedder_url", "reranker_url")
    @classmethod
    def _check_urls(cls, urls: list[str]) -> list[str]:
        if not urls:
            raise ValueError("at least one URL is needed")
        for url in urls:
            parts = urlsplit(url)  # it raises a ValueError itself for a port that is none
            is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            if not is_http or parts.path.strip("/") or parts.query or parts.fragment or parts.username:
                raise ValueError(f"{url!r} is not of the form http://HOST:PORT")
        return urls

    def urls(self, service: Service) -> list[str]:
        """Base URLs of `service`."""
        return {
            Service.GENERATOR: self.generator_url,
            Service.EMBEDDER: self.embedder_url,
            Service.RERANKER: self.reranker_url,
        }[service]

    def body_limit_bytes(self, path: str) -> int:
        """The limit of the service that `path` belongs to."""
        is_generator = SERVICE_OF_PATH.get(path) is Service.GENERATOR
        return self.generator_max_body_bytes if is_generator else self.max_body_bytes

    def bearer_keys(self, path: str) -> tuple[SecretStr, ...] | None:
        """The admin key on admin paths, which stay closed where only `--api-key` is set; else either key, if one is asked for."""
        admin = () if self.admin_api_key is None else (self.admin_api_key,)
        if self.api_key is None:
            return admin or None if path in ADMIN_PATHS else None
        return admin if path in ADMIN_PATHS else (self.api_key, *admin)
