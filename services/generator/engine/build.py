"""Composition root of the engine process: settings in, a loop that is ready to run out.

The one place where scheduler and runner are named together with the model. Sizes are measured here and passed on as specs.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from services.generator.core.block_keys import BlockKeys
from services.generator.core.messages import EngineReady
from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.engine.loop import EngineLoop
from services.generator.engine.transport import ZmqTransport
from services.generator.engine.weights_digest import weights_digest
from services.generator.runner.kv_cache_pool import KVCachePool, kv_bytes_per_block
from services.generator.runner.model_runner import ModelRunner
from services.generator.scheduler.kv_cache_manager import KVCacheManager
from services.generator.scheduler.scheduler import Scheduler
from services.generator.settings import GeneratorSettings
from shared.modeling.config import DecoderConfig, read_decoder_config
from shared.modeling.decoder_loader import load_decoder
from shared.observability.logging import get_logger
from shared.settings.errors import StartError
from shared.settings.model_folder import find_model_folder, read_json

log = get_logger(__name__)
GIB = 2**30


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A loaded model and the ledgers for it."""

    scheduler: Scheduler
    runner: ModelRunner
    ready: EngineReady


def build_engine(settings: GeneratorSettings, num_threads: int, *, address: str) -> EngineLoop:
    """The engine loop of the engine process, its model loaded.

    Raises:
        StartError: the model or a setting makes it impossible; the message says which.
    """
    torch.set_num_threads(num_threads)
    built = build_model(settings)
    return EngineLoop(built.scheduler, built.runner, ZmqTransport(address), built.ready, max_in_flight=1)


def build_model(settings: GeneratorSettings) -> BuiltModel:
    """Load the model and size everything for it."""
    folder = find_model_folder(settings.model)
    config = read_decoder_config(read_json(folder / "config.json"))
    device = torch.device("cpu")
    dtype = getattr(torch, "float32" if settings.dtype == "auto" else settings.dtype)
    limits = _limits(settings, config)
    spec = _kv_cache_spec(settings, config, dtype)
    _check_fits(spec, limits)
    weights = load_decoder(folder, config, dtype, device)
    pool = KVCachePool(config, spec, dtype, device)
    _log_budget(config, spec, dtype)
    keys = _block_keys(folder, dtype, spec) if settings.enable_prefix_caching else None
    return BuiltModel(
        scheduler=Scheduler(limits, KVCacheManager(spec, keys)),
        runner=ModelRunner(config, weights, pool, spec, limits),
        ready=EngineReady(limits.max_model_len, spec.num_blocks, spec.block_size),
    )


def _block_keys(folder: Path, dtype: torch.dtype, spec: KVCacheSpec) -> BlockKeys:
    return BlockKeys(weights_digest(folder), str(dtype), spec.block_size)


def _limits(settings: GeneratorSettings, config: DecoderConfig) -> SchedulerLimits:
    max_model_len = settings.max_model_len or config.context_len
    if max_model_len > config.context_len:
        raise StartError(f"--max-model-len {max_model_len} is longer than the model's context of {config.context_len}")
    return SchedulerLimits(settings.max_num_seqs, settings.max_num_batched_tokens, max_model_len, config.vocab_size)


def _kv_cache_spec(settings: GeneratorSettings, config: DecoderConfig, dtype: torch.dtype) -> KVCacheSpec:
    block_bytes = kv_bytes_per_block(config, settings.block_size, dtype)
    num_blocks = settings.num_gpu_blocks_override or settings.kv_cache_memory_bytes // block_bytes
    return KVCacheSpec(num_blocks, settings.block_size)


def _check_fits(spec: KVCacheSpec, limits: SchedulerLimits) -> None:
    needed = spec.blocks_for(limits.max_model_len)
    if needed > spec.num_blocks:
        raise StartError(
            f"one sequence of --max-model-len {limits.max_model_len} needs {needed} KV blocks, but there is memory for "
            f"{spec.num_blocks}; raise --kv-cache-memory-bytes or lower --max-model-len"
        )


def _log_budget(config: DecoderConfig, spec: KVCacheSpec, dtype: torch.dtype) -> None:
    block_bytes = kv_bytes_per_block(config, spec.block_size, dtype)
    log.info(
        "memory_budget",
        kv_cache_gib=round(spec.num_blocks * block_bytes / GIB, 3),
        kv_blocks=spec.num_blocks,
        kv_tokens=spec.num_blocks * spec.block_size,
        dtype=str(dtype).removeprefix("torch."),
    )
