"""`POST /reset_prefix_cache`: calls that change the server; closed unless there is an admin key.

Built by `app.py`. Which key is asked for is `GeneratorSettings.bearer_keys`'s matter.
"""

from typing import Protocol

from fastapi import APIRouter, Response


class Resettable(Protocol):
    """What has a prefix cache; the production class is `engine.handle.EngineHandle`."""

    def reset_prefix_cache(self) -> None:
        """Forget the content of all KV blocks."""
        ...


def admin_router(engine: Resettable) -> APIRouter:
    """The route over `engine`."""
    router = APIRouter()

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        engine.reset_prefix_cache()
        return Response(status_code=204)

    return router
