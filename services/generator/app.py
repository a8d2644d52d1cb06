"""Composition root of the generator's API process: settings in, an application with its engine process out.

Called by `__main__`. The only place that joins routes, front end and engine; must not import torch.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fastapi import FastAPI

from services.generator.api.adapters import adapters_router
from services.generator.api.admin import admin_router
from services.generator.api.chat import chat_router
from services.generator.api.completions import completions_router
from services.generator.api.models import models_router
from services.generator.api.service import GeneratorService
from services.generator.engine.handle import EngineHandle, EngineState
from services.generator.engine.supervisor import EngineSupervisor
from services.generator.frontend.chat_template_files import load_chat_template
from services.generator.frontend.generation import Engine
from services.generator.frontend.generation_defaults import read_generation_defaults
from services.generator.frontend.model_card import read_model_card
from services.generator.frontend.prompts import PromptPreparer
from services.generator.frontend.sampling import SamplingReader
from services.generator.frontend.structured import GrammarReader
from services.generator.images.prepared_cache import PreparedCache
from services.generator.images.preparer import ImagePreparer, IntakeLimits
from services.generator.images.recipes import read_image_recipe
from services.generator.metrics import GeneratorMetrics
from services.generator.settings import GeneratorSettings
from shared.http.app import Readiness, make_app
from shared.http.background import running
from shared.http.lifecycle import Lifecycle
from shared.observability.logging import get_logger
from shared.settings.model_folder import find_model_folder
from shared.text.tokenizer import Tokenizer

log = get_logger(__name__)


def build_app(settings: GeneratorSettings, lifecycle: Lifecycle) -> FastAPI:
    """The application; its lifespan starts and stops the engine process.

    Raises:
        StartError: the model's folder lacks what the API process needs.
    """
    handle = EngineHandle(settings.max_queued_requests)
    supervisor = EngineSupervisor(settings, handle)
    service = build_service(settings, handle)
    service.metrics.watch(
        lambda: handle.stats, num_restarts=lambda: supervisor.num_restarts, num_graphs=lambda: handle.num_graphs
    )
    service.metrics.watch_adapters(lambda: handle.adapter_view)
    if settings.ignore_unknown_fields:
        log.warning("unknown_fields_are_ignored")

    adapters = adapters_router(handle, allows_changes=settings.allow_runtime_lora)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with running("engine-supervisor", _supervise(supervisor, lifecycle), lifecycle):
            yield
        await supervisor.stop()

    return make_app(
        settings.for_images() if service.card.takes_images else settings,
        lifecycle,
        service.metrics.all,
        readiness=lambda: Readiness(ready=handle.state is EngineState.READY, parts={"engine": handle.state.value}),
        lifespan=lifespan,
        routers=[
            completions_router(service),
            chat_router(service),
            models_router(service),
            admin_router(handle),
            adapters,
        ],
    )


def build_service(settings: GeneratorSettings, engine: Engine) -> GeneratorService:
    """What turns requests into work for `engine`; reads the model's folder, but no weights.

    Raises:
        StartError: the folder lacks what is needed.
    """
    folder = find_model_folder(settings.model)
    tokenizer = Tokenizer(folder)
    card = read_model_card(folder, settings.model_name, settings.max_model_len, tokenizer.vocab_size)
    recipe = None if settings.load_format == "dummy" else read_image_recipe(folder)  # the engine then has no tower
    limits = IntakeLimits(settings.limit_images_per_prompt, settings.max_image_bytes, settings.max_image_pixels)
    prepared = PreparedCache(settings.image_cache_bytes)
    images = None if recipe is None else ImagePreparer(recipe, limits, prepared)
    metrics = GeneratorMetrics()
    metrics.watch_images(
        num_hits=lambda: prepared.num_hits,
        num_misses=lambda: prepared.num_misses,
        num_bytes=lambda: prepared.num_bytes,
    )
    defaults = read_generation_defaults(folder) if settings.generation_config == "auto" else None
    return GeneratorService(
        card=replace(card, takes_images=images is not None),
        tokenizer=tokenizer,
        prompts=PromptPreparer(tokenizer, load_chat_template(folder), card, images),
        sampling=SamplingReader(tokenizer, card, defaults),
        grammars=GrammarReader(tokenizer, card),
        engine=engine,
        metrics=metrics,
        ignores_unknown_fields=settings.ignore_unknown_fields,
    )


async def _supervise(supervisor: EngineSupervisor, lifecycle: Lifecycle) -> None:
    """An engine that never came up ends the service; one that cannot be kept up leaves it there to say so."""
    end = await supervisor.run()
    if end.was_ready:
        lifecycle.give_up(end.reason)
    else:
        lifecycle.fail(end.reason)
