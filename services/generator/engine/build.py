"""Composition root of the engine process: settings in, a loop that is ready to run out.

The one place where scheduler and runner are named together with the model. Sizes are measured here and passed on as specs.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from services.generator.core.block_keys import BlockKeys
from services.generator.core.end_tokens import read_end_token_ids
from services.generator.core.grammar import GrammarsUnsupportedError, grammar_threads, make_grammar_tokenizer
from services.generator.core.messages import EngineReady
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.engine.adapter_lifecycle import AdapterLifecycle
from services.generator.engine.adapters import LoadedAdapters, load_adapters
from services.generator.engine.device_memory import MeasuredMemory, check_weights_fit, measure_memory, must_fit
from services.generator.engine.images import LoadedImages, load_images
from services.generator.engine.loop import EngineLoop
from services.generator.engine.memory_budget import MemoryBudget, activation_bytes
from services.generator.engine.transport import ZmqTransport
from services.generator.engine.weights_digest import weights_digest
from services.generator.layers.backends import check, choose
from services.generator.runner.kv_cache_pool import KVCachePool, kv_bytes_per_block
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
from shared.settings.errors import ModelFolderError, StartError
from shared.settings.model_folder import find_model_folder, read_json
from shared.text.tokenizer import Tokenizer

log = get_logger(__name__)

MS_PER_S = 1000

MAX_STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""--max-num-batched-tokens unless given."""

MAX_ROWS = {"cpu": 32, "cuda": 256}
"""--max-num-seqs unless given."""

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


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What runners are made of: one to measure with, and the one that serves."""

    model: LoadedModel
    limits: SchedulerLimits
    adapters: LoadedAdapters
    images: LoadedImages

    @property
    def device(self) -> torch.device:
        return self.model.weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.weights.embedding.dtype

    @property
    def can_replay(self) -> bool:
        return self.device.type == "cuda" and self.model.backends.can_replay

    def pool(self, spec: KVCacheSpec) -> KVCachePool:
        return KVCachePool(self.model.config, spec, self.dtype, self.device)

    def runner(self, spec: KVCacheSpec, pool: KVCachePool) -> ModelRunner:
        return ModelRunner(self.model, pool, spec, self.limits, self.adapters.storage, self.images.cache)


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
    folder = find_model_folder(settings.model)
    config = read_decoder_config(read_json(folder / "config.json"))
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, folder, device)
    backends = choose(settings.attention_backend, settings.kernel_backend, device.type)
    check(backends, device.type, dtype)
    log.info("engine_device", device=str(device), dtype=str(dtype), **asdict(backends))
    limits = _limits(settings, config, device)
    weights = _weights(settings, folder, config, dtype, device)
    with must_fit("what adapters and images need does not fit beside the weights"):
        adapters = load_adapters(settings, folder, config, limits, weights)
        images = load_images(settings, folder, config, limits, dtype, device)
    limits = replace(limits, images=images.limits)
    loaded = _Loaded(LoadedModel(config, weights, backends), limits, adapters, images)
    measured = _measured_memory(settings, loaded)
    spec = KVCacheSpec(measured.num_blocks, settings.block_size)
    _check_fits(spec, limits)
    pool = loaded.pool(spec)
    budget = MemoryBudget(
        weights=weights.num_bytes,
        kv_cache=pool.num_bytes,
        bank=adapters.num_bank_bytes,
        encoder=images.num_bytes,
        graphs=measured.graph_bytes,
        activations=activation_bytes(config, limits, dtype.itemsize),
    )
    log.info("memory_budget", **budget.in_gib(), kv_blocks=spec.num_blocks, kv_tokens=spec.num_tokens)
    keys = _block_keys(settings, folder, dtype, spec) if settings.enable_prefix_caching else None
    runner = loaded.runner(spec, pool)
    _prepare(runner, settings, loaded)
    return BuiltModel(
        scheduler=Scheduler(
            limits,
            KVCacheManager(spec, keys),
            _grammars(folder, limits),
            adapters.registry,
            max_adapter_wait_ms=int(settings.lora_max_wait * MS_PER_S),
        ),
        runner=runner,
        ready=EngineReady(
            limits.max_model_len,
            limits.max_num_seqs,
            spec.num_blocks,
            spec.block_size,
            adapters.contract,
            images.max_request_rows,
            runner.num_graphs,
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


def _limits(settings: GeneratorSettings, config: DecoderConfig, device: torch.device) -> SchedulerLimits:
    max_model_len = settings.max_model_len or config.context_len
    if max_model_len > config.context_len:
        raise StartError(f"--max-model-len {max_model_len} is longer than the model's context of {config.context_len}")
    exact_len = config.rope.scaling.exact_len
    if exact_len is not None and max_model_len > exact_len:
        raise StartError(
            f"rope scaling {config.rope.kind} is supported up to its original length only, since beyond it the keys of a "
            f"sequence depend on how long it becomes; start with --max-model-len {min(exact_len, config.context_len)}"
        )
    num_rows = settings.max_num_seqs or MAX_ROWS[device.type]
    num_tokens = settings.max_num_batched_tokens or MAX_STEP_TOKENS[device.type]
    return SchedulerLimits(num_rows, num_tokens, max_model_len, config.vocab_size)


def _measured_memory(settings: GeneratorSettings, loaded: _Loaded) -> MeasuredMemory:
    """KV blocks: as many as the settings say, else as fit."""
    block_bytes = kv_bytes_per_block(loaded.model.config, settings.block_size, loaded.dtype)
    if settings.num_gpu_blocks_override is not None:
        return MeasuredMemory(settings.num_gpu_blocks_override, 0)
    if loaded.device.type == "cpu":
        return MeasuredMemory(settings.kv_cache_memory_bytes // block_bytes, 0)
    one = KVCacheSpec(1, settings.block_size)  # enough: nothing is kept of the steps that are measured
    probe = loaded.runner(one, loaded.pool(one))

    def run_largest_step() -> None:
        loaded.images.run_largest()
        probe.run_largest_step()

    has_graphs = loaded.can_replay and not settings.enforce_eager
    capture = partial(probe.capture_graphs, probe.graph_shapes.all) if has_graphs else None
    return measure_memory(run_largest_step, capture, block_bytes, settings.gpu_memory_utilization)


def _prepare(runner: ModelRunner, settings: GeneratorSettings, loaded: _Loaded) -> None:
    """Compile and capture whatever serving will launch."""
    if not loaded.can_replay:
        return
    runner.warm_up()
    if not settings.enforce_eager:
        runner.capture_graphs(runner.graph_shapes.all)
        log.info("graphs_captured", num_graphs=runner.num_graphs)


def _check_fits(spec: KVCacheSpec, limits: SchedulerLimits) -> None:
    needed = spec.blocks_for(limits.max_model_len)
    if needed > spec.num_blocks:
        raise StartError(
            f"one sequence of --max-model-len {limits.max_model_len} needs {needed} KV blocks, but there is memory for "
            f"{spec.num_blocks}; raise --kv-cache-memory-bytes, on a GPU --gpu-memory-utilization, or lower --max-model-len"
        )
