"""Which paths the gateway forwards, to which service, and which model task each service has.

The fixed table of the API; everything else in the gateway that asks "whose is this path?" asks here. Holds no state.
"""

from enum import StrEnum

from shared.contracts.models import Task


class Service(StrEnum):
    """The services behind the gateway, in the order in which `/v1/models` and `/ready` list them."""

    GENERATOR = "generator"
    EMBEDDER = "embedder"
    RERANKER = "reranker"


LOAD_ADAPTER_PATH = "/v1/load_lora_adapter"

POST_PATHS: dict[str, Service] = {
    "/v1/completions": Service.GENERATOR,
    "/v1/chat/completions": Service.GENERATOR,
    "/tokenize": Service.GENERATOR,
    "/detokenize": Service.GENERATOR,
    LOAD_ADAPTER_PATH: Service.GENERATOR,
    "/v1/unload_lora_adapter": Service.GENERATOR,
    "/v1/pin_lora_adapter": Service.GENERATOR,
    "/v1/embeddings": Service.EMBEDDER,
    "/v1/embed": Service.EMBEDDER,
    "/v2/embed": Service.EMBEDDER,
    "/v1/rerank": Service.RERANKER,
    "/rerank": Service.RERANKER,
    "/v2/rerank": Service.RERANKER,
    "/score": Service.RERANKER,
    "/classify": Service.RERANKER,
}
GET_PATHS: dict[str, Service] = {"/v1/adapters": Service.GENERATOR}
SERVICE_OF_PATH: dict[str, Service] = POST_PATHS | GET_PATHS

ADMIN_PATHS = frozenset({LOAD_ADAPTER_PATH, "/v1/unload_lora_adapter", "/v1/pin_lora_adapter"})
"""They change a server; they need the admin key and are never sent twice."""

TASK_OF_SERVICE: dict[Service, Task] = {
    Service.GENERATOR: "generate",
    Service.EMBEDDER: "embed",
    Service.RERANKER: "rerank",
}
PATHS_OF_TASK: dict[Task, str] = {
    "generate": "/v1/chat/completions or /v1/completions",
    "embed": "/v1/embeddings",
    "rerank": "/v1/rerank",
}
"""What a client is told that uses a model on another task's path."""
