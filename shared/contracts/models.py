"""`GET /v1/models`: the list each service answers and the gateway merges.

An adapter's entry has the served base model as `parent`, and as `root` the place it came from; a base model's entry has neither.
A generator says what its prompts may hold.
"""

from typing import Literal

from shared.contracts.wire import WireModel

Modality = Literal["text", "image"]
Task = Literal["generate", "embed", "rerank"]


class ModelEntry(WireModel):
    """One served model or adapter; `created` is in unix seconds, `max_model_len` in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "trivium"
    task: Task
    max_model_len: int
    root: str | None = None
    parent: str | None = None
    input_modalities: list[Modality] | None = None


class ModelList(WireModel):
    """All models of one service, or of all services at the gateway."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]
