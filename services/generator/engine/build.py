"""Composition root of the engine process: settings in, a loop that is ready to run out.

The one place where scheduler and runner are named together with the model. Sizes are measured here and passed on as specs.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from services.generator.core.block_keys import BlockKeys
from services.generator.core.end_tokens import read_end_token_ids
from services.generator.core.grammar import GrammarsUnsupportedError, grammar_threads, make_grammar_tokenizer
from services.generator.core.messages import EngineReady
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.engine.adapter_lifecycle import AdapterLifecycle
from services.generator.engine.adapters import load_adapters
from services.generator.engine.device_memory import check_weights_fit, must_fit
from services.generator.engine.images import load_images
from services.generator.engine.loop import EngineLoop
from services.generator.engine.memory_budget import MemoryBudget, activation_bytes
from services.generator.engine.runner_start import RunnerParts, StartedRunner, start_runner
from services.generator.engine.start_times import StartTimes
from services.generator.engine.step_limits import step_limits
from services.generator.engine.transport import ZmqTransport
from services.generator.engine.weights_digest import weights_digest
from services.generator.layers.backends import check, choose
from services.generator.runner.model_runner import LaunchedStep, LoadedModel, ModelRunner
from services.generator.scheduler.grammars import GrammarManager
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from services.generator.scheduler.scheduler import Scheduler
from services.generator.settings import GeneratorSettings
from shared.modeling.config import DecoderConfig, read_decoder_config
from shared.modeling.decoder import DecoderWeights
from shared.modeling.decoder_loader import decoder_bytes, load_decoder, make_random_decoder
from shared.modeling.device import choose_device, choose_dtype
from shared.observability.logging import get_logger
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import find_model_folder, read_json
from shared.text.tokenizer import Tokenizer

log = get_logger(__name__)

MS_PER_S = 1000

MAX_IN_FLIGHT_CPU = 1
MAX_IN_FLIGHT_ACCELERATOR = 2
"""Steps between launch and commit. On an accelerator the next step is launched while the last one runs; on a CPU a launch is
the step itself, so that a second one would only make the tokens of the first wait."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A loaded model and the ledgers for it."""

    scheduler: Scheduler
    runner: ModelRunner
    ready: EngineReady
    max_in_flight: int
    adapters: AdapterLifecycle | None = None


def build_engine(settings: GeneratorSettings, num_threads: int, *, address: str) -> EngineLoop[LaunchedStep]:
    """The engine loop of the engine process, its model loaded.

    Raises:
        StartError: the model or a setting makes it impossible; the message says which.
    """
    torch.set_num_threads(num_threads)
    built = build_model(settings)
    return EngineLoop(
        built.scheduler,
        built.runner,
        ZmqTransport(address),
        built.ready,
        max_in_flight=built.max_in_flight,
        adapters=built.adapters,
    )


def build_model(settings: GeneratorSettings) -> BuiltModel:
    """Load the model and size everything for it."""
    times = StartTimes()
    folder = find_model_folder(settings.model)
    config = read_decoder_config(read_json(folder / "config.json"))
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, folder, device)
    backends = choose(settings.attention_backend, settings.kernel_backend, device.type)
    check(backends, device.type, dtype)
    log.info("engine_device", device=str(device), dtype=str(dtype), **asdict(backends))
    limits = step_limits(settings, config, device)
    with times.part("weights"):
        weights = _weights(settings, folder, config, dtype, device)
    with must_fit("what adapters and images need does not fit beside the weights"):
        with times.part("adapters"):
            adapters = load_adapters(settings, folder, config, limits, weights)
        with times.part("images"):
            images = load_images(settings, folder, config, limits, dtype, device)
    limits = replace(limits, images=images.limits)
    parts = RunnerParts(LoadedModel(config, weights, backends), limits, adapters, images)
    started = start_runner(settings, parts, times)
    spec = started.spec
    _log_budget(parts, started)
    with times.part("prefix_keys"):
        keys = _block_keys(settings, folder, dtype, spec) if settings.enable_prefix_caching else None
    with times.part("grammars"):
        grammars = _grammars(folder, limits)
    max_wait_ms = int(settings.lora_max_wait * MS_PER_S)
    scheduler = Scheduler(
        limits, KVCacheManager(spec, keys), grammars, adapters.registry, max_adapter_wait_ms=max_wait_ms
    )
    log.info("start_times", **times.in_seconds())
    return BuiltModel(
        scheduler=scheduler,
        runner=started.runner,
        ready=EngineReady(
            limits.max_model_len,
            limits.max_num_seqs,
            spec.num_blocks,
            spec.block_size,
            adapters.contract,
            images.max_request_rows,
            started.runner.num_graphs,
        ),
        max_in_flight=MAX_IN_FLIGHT_CPU if device.type == "cpu" else MAX_IN_FLIGHT_ACCELERATOR,
        adapters=adapters.lifecycle,
    )


def _weights(
    settings: GeneratorSettings, folder: Path, config: DecoderConfig, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    if device.type == "cuda":
        check_weights_fit(decoder_bytes(config, dtype), settings.gpu_memory_utilization)
    if settings.load_format == "dummy":
        return make_random_decoder(config, dtype, device)
    return load_decoder(folder, config, dtype, device)


def _log_budget(parts: RunnerParts, started: StartedRunner) -> None:
    spec, model = started.spec, parts.model
    budget = MemoryBudget(
        weights=model.weights.num_bytes,
        kv_cache=started.kv_bytes,
        bank=parts.adapters.num_bank_bytes,
        encoder=parts.images.num_bytes,
        graphs=started.graph_bytes,
        activations=activation_bytes(model.config, parts.limits, parts.dtype.itemsize),
    )
    log.info("memory_budget", **budget.in_gib(), kv_blocks=spec.num_blocks, kv_tokens=spec.num_tokens)


def _block_keys(settings: GeneratorSettings, folder: Path, dtype: torch.dtype, spec: KVCacheSpec) -> BlockKeys:
    digest = b"dummy" if settings.load_format == "dummy" else weights_digest(folder)
    return BlockKeys(digest, str(dtype), spec.block_size)


def _grammars(folder: Path, limits: SchedulerLimits) -> GrammarManager | None:
    """None where the model's files do not allow it; the API process finds the same and refuses requests with a grammar."""
    try:
        tokenizer = Tokenizer(folder)
        tokens = make_grammar_tokenizer(tokenizer, read_end_token_ids(folder))
    except (ModelFolderError, GrammarsUnsupportedError) as error:
        log.warning("no_structured_output", reason=str(error))
        return None
    return GrammarManager(tokens, tokenizer.vocab_size, limits.vocab_size, grammar_threads(1))
