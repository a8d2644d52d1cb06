"""The paths below `/v1/models`: names with slashes are found, others are a 404, and a change shows at once."""

from fastapi import FastAPI
from starlette.testclient import TestClient

from shared.contracts.models import ModelEntry
from shared.http.handlers import install_handlers
from shared.http.model_list import model_list_router


def entry(name: str) -> ModelEntry:
    return ModelEntry(id=name, created=1, task="generate", max_model_len=8)


def test_list_and_entries() -> None:
    served = [entry("org/base")]
    app = FastAPI()
    install_handlers(app)
    app.include_router(model_list_router(lambda: served))
    client = TestClient(app)
    expected = {
        "id": "org/base",
        "object": "model",
        "created": 1,
        "owned_by": "trivium",
        "task": "generate",
        "max_model_len": 8,
    }
    assert client.get("/v1/models").json() == {"object": "list", "data": [expected]}
    assert client.get("/v1/models/org/base").json() == expected
    error = client.get("/v1/models/base")
    assert (error.status_code, error.json()["error"]["code"]) == (404, "model_not_found")
    served.append(entry("base"))
    assert client.get("/v1/models/base").json()["id"] == "base"
