"""Settings of a service: each declared once, read once from flags and environment, then never written.

A service subclasses `ServiceSettings`; its `__main__` calls `load_settings`. `--help`, the environment names and the checks
all come from the declaration. This package is the only place that reads `os.environ`.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

Settings = TypeVar("Settings", bound="ServiceSettings")


def _split(value: Any) -> Any:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


RepeatedStr = Annotated[list[str], NoDecode, BeforeValidator(_split)]
"""A flag that may be given several times; in the environment its values are separated by commas."""


def settings_config(service: str) -> SettingsConfigDict:
    """The configuration shared by all settings classes, for the service `service`."""
    return SettingsConfigDict(
        env_prefix=f"TRIVIUM_{service.upper()}_",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        cli_prog_name=f"python -m services.{service}",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        protected_namespaces=(),
    )


class ServiceSettings(BaseSettings):
    """What every service has: where it listens, who may call it, what it logs, how it stops."""

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all interfaces, as in a container.")
    port: int = Field(..., ge=0, le=65535, description="TCP port to listen on.")
    api_key: SecretStr | None = Field(
        None, description="Bearer token asked for on every path but /health, /ready and /metrics; none by default."
    )
    max_body_bytes: int = Field(
        8 * 2**20, ge=1024, description="Largest accepted request body in bytes; a larger one is answered 413."
    )
    shutdown_grace_s: float = Field(
        10.0, ge=0, description="Seconds that running requests may take to finish after SIGTERM."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level to log.")
    log_format: Literal["json", "console"] = Field("json", description="json for machines, console for a terminal.")

    def body_limit_bytes(self, path: str) -> int:
        """Largest accepted body of a request to `path`; overridden where paths differ."""
        return self.max_body_bytes

    def bearer_keys(self, path: str) -> tuple[SecretStr, ...] | None:
        """The keys of which a request to `path` must carry one: None asks for nothing, an empty tuple lets nobody in."""
        return None if self.api_key is None else (self.api_key,)


class ModelSettings(ServiceSettings):
    """What the three services with a model have besides."""

    model: str = Field(..., description="Folder of a Hugging Face model, or a hub id such as org/name.")
    served_model_name: str | None = Field(
        None, description="Name that clients use; the last part of --model unless given."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Precision of weights and activations; auto takes float32 on a CPU and the folder's own on a GPU.",
    )
    num_threads: int = Field(
        0, ge=0, description="CPU threads for the model; 0 takes all cores. Give services on one machine a share each."
    )

    @property
    def model_name(self) -> str:
        """The name this model is served under."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]


def load_settings(cls: type[Settings], argv: Sequence[str]) -> Settings:
    """Read the settings from `argv`, then the environment, then the defaults.

    A value that is wrong, or a flag or variable that does not exist, ends the process with exit code 2 and a line on
    standard error that names it.
    """
    try:
        _refuse_unknown_variables(cls)
        return cls(_cli_parse_args=list(argv))
    except ValidationError as error:
        lines = [_describe(cls, dict(item)) for item in error.errors()]
    except SettingsError as error:
        lines = [str(error)]
    sys.stderr.write("".join(f"error: {line}\n" for line in lines))
    raise SystemExit(2)


def _refuse_unknown_variables(cls: type[ServiceSettings]) -> None:
    prefix = cls.model_config["env_prefix"]
    known = {prefix + name.upper() for name in cls.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith(prefix) and name not in known)
    if unknown:
        raise SettingsError(f"environment variable {unknown[0]} is not a setting of this service")


def _describe(cls: type[ServiceSettings], item: dict[str, Any]) -> str:
    if not item["loc"]:
        return str(item["msg"])  # of settings that do not go together, which the message names
    name = str(item["loc"][0])
    flag = "--" + name.replace("_", "-")
    variable = f"{cls.model_config['env_prefix']}{name.upper()}"
    if item["type"] == "missing":
        return f"{flag} (or {variable}) is required"
    return f"{flag} (or {variable}) = {item['input']!r}: {item['msg']}"
