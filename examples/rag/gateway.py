"""The way to the gateway: a client for it, whether it is ready, and which models it serves.

Called by __main__. Turns what can be wrong at the start into a GatewayError that says what to do.
"""

from urllib.parse import urlsplit

import openai

TASKS = ("generate", "embed", "rerank")


class GatewayError(Exception):
    """The gateway cannot be used as it is; the message says what to do about it."""


def connect(base_url: str, api_key: str) -> openai.OpenAI:
    """A client for the gateway; one on this machine is spoken to directly, whatever proxy the environment names."""
    is_local = urlsplit(base_url).hostname in ("127.0.0.1", "localhost", "::1")
    return openai.OpenAI(
        base_url=base_url, api_key=api_key, http_client=openai.DefaultHttpxClient(trust_env=not is_local)
    )


def check_ready(client: openai.OpenAI) -> None:
    """Ask the gateway whether all it needs is up.

    Raises:
        GatewayError: nobody answers, the gateway is not ready, or the answer is not that of a gateway.
    """
    url = str(client.base_url).rstrip("/").removesuffix("/v1") + "/ready"
    try:
        client.with_options(max_retries=0, timeout=10).get(url, cast_to=object)
    except openai.APIConnectionError as error:
        raise GatewayError(f"no gateway answers at {client.base_url}; start one with `make up`") from error
    except openai.APIStatusError as error:
        if error.status_code == 503:
            raise GatewayError(f"the gateway at {client.base_url} is not ready yet: {error}") from error
        raise GatewayError(f"{url} answered {error.status_code}; is this a Trivium gateway?") from error


def models_by_task(client: openai.OpenAI) -> dict[str, str]:
    """The first model served for each task. Adapters, which name a parent, are left out."""
    models: dict[str, str] = {}
    for model in client.models.list():
        extra = model.model_extra or {}
        if not extra.get("parent"):
            models.setdefault(str(extra.get("task")), model.id)
    if missing := [task for task in TASKS if task not in models]:
        raise GatewayError(f"the gateway at {client.base_url} serves no model for: {', '.join(missing)}")
    return models
