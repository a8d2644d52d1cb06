"""`GET /v1/models` and `GET /v1/models/{id}` of one service.

Included by each model service; what is served is asked for anew each time, since adapters come and go.
"""

from collections.abc import Callable, Sequence

from fastapi import APIRouter, Response

from shared.contracts.models import ModelEntry, ModelList
from shared.errors import ModelNotFoundError
from shared.http.app import json_response


def model_list_router(entries: Callable[[], Sequence[ModelEntry]]) -> APIRouter:
    """The two paths over what `entries` answers."""
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models() -> Response:
        return json_response(ModelList(data=list(entries())), exclude_none=True)

    @router.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Response:
        for entry in entries():
            if entry.id == name:
                return json_response(entry, exclude_none=True)
        raise ModelNotFoundError(f"The model {name!r} is not served here", param="model")

    return router
