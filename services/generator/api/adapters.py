"""`GET /v1/adapters`, and the calls that load, unload and pin adapters, which are closed unless the settings allow them.

Built by `app.py`. Shapes come from `shared.contracts.adapters`; what is allowed the engine decides, which reads the folders. Which
key is asked for is `GeneratorSettings.bearer_keys`'s matter.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol

import msgspec
from fastapi import APIRouter, Depends, Response

from services.generator.core.adapter_view import AdapterView
from services.generator.core.adapters import AdapterState
from services.generator.core.messages import AdapterAnswer, AdapterCommand, LoadAdapter, PinAdapter, UnloadAdapter
from shared.contracts.adapters import (
    AdapterBank,
    AdapterEntry,
    AdapterList,
    AdapterStatus,
    LoadAdapterRequest,
    LoadAdapterResponse,
    PinAdapterRequest,
    RejectedAdapter,
    UnloadAdapterRequest,
)
from shared.errors import ForbiddenError, InternalError
from shared.http.app import json_response
from shared.http.body import body_schema, json_body


class AdapterEngine(Protocol):
    """What has adapters; the production class is `engine.handle.EngineHandle`."""

    @property
    def adapter_view(self) -> AdapterView:
        """What is known of them."""
        ...

    def change_adapter(self, make: Callable[[int], AdapterCommand]) -> Awaitable[AdapterAnswer]:
        """Send the command that `make` makes of a call's id, and wait for the answer."""
        ...


def adapters_router(engine: AdapterEngine, *, allows_changes: bool) -> APIRouter:
    """The routes over `engine`."""
    router = APIRouter()

    async def check_open() -> None:
        if not allows_changes:
            raise ForbiddenError("Adapters do not change here: the service was started without --allow-runtime-lora")

    changes = [Depends(check_open)]

    @router.get("/v1/adapters")
    async def adapters() -> Response:
        return json_response(_list(engine.adapter_view))

    @router.post("/v1/load_lora_adapter", openapi_extra=body_schema(LoadAdapterRequest), dependencies=changes)
    async def load(body: Annotated[LoadAdapterRequest, Depends(json_body(LoadAdapterRequest))]) -> Response:
        is_dry_run, may_replace = bool(body.dry_run), body.load_inplace is not False
        answer = await engine.change_adapter(
            lambda call_id: LoadAdapter(call_id, body.lora_name, body.lora_path, is_dry_run, may_replace)
        )
        return json_response(_loaded(body.lora_name, answer))

    @router.post("/v1/unload_lora_adapter", openapi_extra=body_schema(UnloadAdapterRequest), dependencies=changes)
    async def unload(body: Annotated[UnloadAdapterRequest, Depends(json_body(UnloadAdapterRequest))]) -> Response:
        answer = await engine.change_adapter(lambda call_id: UnloadAdapter(call_id, body.lora_name, bool(body.drain)))
        return json_response(_status(body.lora_name, answer))

    @router.post("/v1/pin_lora_adapter", openapi_extra=body_schema(PinAdapterRequest), dependencies=changes)
    async def pin(body: Annotated[PinAdapterRequest, Depends(json_body(PinAdapterRequest))]) -> Response:
        is_pinned = body.pinned is not False
        answer = await engine.change_adapter(lambda call_id: PinAdapter(call_id, body.lora_name, is_pinned))
        return json_response(_status(body.lora_name, answer))

    return router


def _list(view: AdapterView) -> AdapterList:
    rejected = [RejectedAdapter(root=reject.root, reason=reject.reason) for reject in view.rejects]
    return AdapterList(data=list(map(_entry, view.versions())), rejected=rejected, bank=_bank(view))


def _bank(view: AdapterView) -> AdapterBank | None:
    bank, counts = view.bank, view.counts
    if bank is None:
        return None
    return AdapterBank(
        max_rank=bank.max_rank,
        num_slots=bank.num_slots,
        num_host_places=bank.num_places,
        num_in_slots=counts.num_in_slots,
        num_in_host=counts.num_in_host,
        host_bytes=counts.host_bytes,
        targets=list(bank.targets),
        bank_bytes=bank.bank_bytes,
        kv_tokens_per_slot=bank.kv_tokens_per_slot,
    )


def _entry(state: AdapterState) -> AdapterEntry:
    known = state.description
    return AdapterEntry(
        name=known.name,
        root=known.root,
        digest=state.digest,
        status="serving" if state.is_current else "draining",
        tier=state.tier.value,
        pinned=state.is_pinned,
        max_rank=known.max_rank,
        num_modules=known.num_modules,
        targets=list(known.targets),
        num_skipped=known.num_skipped,
        warnings=list(known.warnings),
        num_bytes=known.num_bytes,
        leases=state.num_leases,
        waiting=state.num_requests - state.num_leases,
        running=state.num_running,
        hits=state.num_hits,
        last_used=None if state.last_used_ms is None else state.last_used_ms / 1000,
    )


def _loaded(name: str, answer: AdapterAnswer) -> LoadAdapterResponse:
    if answer.report is None or answer.outcome is None:
        raise InternalError("a load was answered without a report; this is a bug")
    return LoadAdapterResponse.model_validate(
        {
            "lora_name": name,
            "status": answer.outcome.value,
            "root": answer.root,
            "digest": answer.digest,
            "max_rank": answer.report.max_rank,
            "num_bytes": answer.report.num_bytes,
            "modules": [msgspec.structs.asdict(module) for module in answer.report.modules],
            "skipped": [msgspec.structs.asdict(tensor) for tensor in answer.report.skipped],
            "warnings": list(answer.report.warnings),
        }
    )


def _status(name: str, answer: AdapterAnswer) -> AdapterStatus:
    return AdapterStatus.model_validate({"lora_name": name, "status": answer.outcome})
