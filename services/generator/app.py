"""Composition root of the generator's API process: settings in, an application with its engine process out.

Called by `__main__`. The only place that joins routes, front end and engine; must not import torch.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from services.generator.api.admin import admin_router
from services.generator.api.chat import chat_router
from services.generator.api.completions import completions_router
from services.generator.api.models import models_router
from services.generator.api.service import GeneratorService
from services.generator.engine.handle import EngineHandle, EngineState
from services.generator.engine.process import EngineProcess
from services.generator.frontend.chat_template import load_chat_template
from services.generator.frontend.model_card import read_model_card
from services.generator.frontend.prompts import PromptPreparer
from services.generator.frontend.sampling import SamplingReader
from services.generator.frontend.structured import GrammarReader
from services.generator.metrics import GeneratorMetrics
from services.generator.settings import GeneratorSettings
from shared.http.app import Readiness, make_app
from shared.http.lifecycle import Lifecycle
from shared.observability.logging import get_logger
from shared.settings.model_folder import find_model_folder
from shared.text.tokenizer import Tokenizer

log = get_logger(__name__)
ENGINE_STOP_S = 1.5


def build_app(settings: GeneratorSettings, lifecycle: Lifecycle) -> FastAPI:
    """The application; its lifespan starts and stops the engine process.

    Raises:
        StartError: the model's folder lacks what the API process needs.
    """
    folder = find_model_folder(settings.model)
    tokenizer = Tokenizer(folder)
    card = read_model_card(folder, settings.model_name, settings.max_model_len, tokenizer.vocab_size)
    metrics = GeneratorMetrics()
    sockets = tempfile.TemporaryDirectory(prefix="trivium-")
    address = f"ipc://{Path(sockets.name) / 'engine.sock'}"
    max_requests = settings.max_num_seqs + settings.max_queued_requests
    handle = EngineHandle(address, max_requests)
    metrics.watch(lambda: handle.stats)
    service = GeneratorService(
        card=card,
        tokenizer=tokenizer,
        prompts=PromptPreparer(tokenizer, load_chat_template(folder), card),
        sampling=SamplingReader(tokenizer, card),
        grammars=GrammarReader(tokenizer, card),
        engine=handle,
        metrics=metrics,
        max_choices=max_requests,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        process = EngineProcess(settings, address)
        await process.start()
        events = asyncio.create_task(handle.run(), name="engine-events")
        watch = asyncio.create_task(_watch(process, events, handle, lifecycle), name="engine-watch")
        yield
        watch.cancel()
        handle.shutdown()
        await process.stop(ENGINE_STOP_S)
        events.cancel()
        await asyncio.gather(watch, events, return_exceptions=True)
        sockets.cleanup()

    return make_app(
        settings,
        lifecycle,
        metrics.all,
        readiness=lambda: Readiness(ready=handle.state is EngineState.READY, parts={"engine": handle.state.value}),
        lifespan=lifespan,
        routers=[completions_router(service), chat_router(service), models_router(service), admin_router(handle)],
    )


async def _watch(
    process: EngineProcess, events: asyncio.Task[None], handle: EngineHandle, lifecycle: Lifecycle
) -> None:
    """An engine that ends by itself, or can no longer be heard, ends its waiters with an error and the service with it."""
    end = asyncio.create_task(process.wait(), name="engine-end")
    try:
        await asyncio.wait({end, events}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        end.cancel()
    handle.mark_dead()
    if events.done():
        log.error("engine_events_failed", exc_info=events.exception())
        lifecycle.fail("the engine's events can no longer be read")
    else:
        lifecycle.fail(f"the engine process ended with exit code {process.returncode}")
