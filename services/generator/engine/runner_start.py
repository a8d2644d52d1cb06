"""Makes the runner that serves: finds out how much KV fits, allocates it, compiles kernels and captures graphs.

Called by `engine.build`, once. Holds nothing afterwards; `device_memory` says how memory is measured.

On a GPU kernels are compiled and memory is measured with a runner that has hardly a cache; that one is gone before the cache is
made. Every graph is captured once, with the cache, since it holds addresses of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.generator.core.specs import KVCacheSpec, SchedulerLimits
from services.generator.engine.adapters import LoadedAdapters
from services.generator.engine.device_memory import (
    FEWER_BLOCKS,
    MeasuredMemory,
    check_cache_fits,
    kept_bytes,
    measure_memory,
    must_fit,
    reckon_graphs,
)
from services.generator.engine.images import LoadedImages
from services.generator.engine.memory_budget import GIB
from services.generator.engine.start_times import StartTimes
from services.generator.engine.step_limits import check_longest_fits
from services.generator.runner.kv_cache_pool import KVCachePool, kv_bytes_per_block
from services.generator.runner.model_runner import LoadedModel, ModelRunner
from services.generator.settings import GeneratorSettings
from shared.observability.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """What runners are made of: one to measure with, and the one that serves."""

    model: LoadedModel
    limits: SchedulerLimits
    adapters: LoadedAdapters
    images: LoadedImages

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of the cache."""
        return self.model.weights.embedding.dtype

    @property
    def can_replay(self) -> bool:
        """Whether steps may be captured, and have kernels to compile."""
        return self.device.type == "cuda" and self.model.backends.can_replay

    def pool(self, spec: KVCacheSpec) -> KVCachePool:
        """A cache."""
        return KVCachePool(self.model.config, spec, self.dtype, self.device)

    def runner(self, spec: KVCacheSpec, pool: KVCachePool) -> ModelRunner:
        """A runner with that cache."""
        return ModelRunner(self.model, pool, spec, self.limits, self.adapters.storage, self.images.cache)


@dataclass(frozen=True, slots=True)
class StartedRunner:
    """Ready to execute steps; bytes of its cache, and of its graphs as they turned out."""

    runner: ModelRunner
    spec: KVCacheSpec
    kv_bytes: int
    graph_bytes: int


def start_runner(settings: GeneratorSettings, parts: RunnerParts, times: StartTimes) -> StartedRunner:
    """Size the cache and make everything that serving will launch.

    Raises:
        StartError: something does not fit; says what, and by how much where that is known.
    """
    measured = _measured_memory(settings, parts, times)
    spec = KVCacheSpec(measured.num_blocks, settings.block_size)
    check_longest_fits(spec, parts.limits)
    if settings.num_gpu_blocks_override is not None and parts.device.type == "cuda":
        check_cache_fits(spec.num_blocks, kv_bytes_per_block(parts.model.config, spec.block_size, parts.dtype))
    with times.part("kv_cache"), must_fit("the KV cache does not fit", FEWER_BLOCKS):
        pool = parts.pool(spec)
    runner = parts.runner(spec, pool)
    graph_bytes = _capture(runner, measured, times) if _has_graphs(settings, parts) else 0
    if parts.device.type == "cuda":
        # Whatever was reckoned: what has run once beside everything else has its memory.
        with times.part("largest_step"), must_fit("the largest step does not fit beside the KV cache", FEWER_BLOCKS):
            _largest_step(runner, parts)()
            torch.cuda.synchronize()
    return StartedRunner(runner, spec, pool.num_bytes, graph_bytes)


def _measured_memory(settings: GeneratorSettings, parts: RunnerParts, times: StartTimes) -> MeasuredMemory:
    """KV blocks: as many as the settings say, else as fit."""
    block_bytes = kv_bytes_per_block(parts.model.config, settings.block_size, parts.dtype)
    override = settings.num_gpu_blocks_override
    if parts.device.type == "cpu":
        return MeasuredMemory(override or settings.kv_cache_memory_bytes // block_bytes, None)
    one = KVCacheSpec(1, settings.block_size)  # enough: nothing is kept of the steps that are run with it
    probe = parts.runner(one, parts.pool(one))
    if parts.can_replay:
        with times.part("kernels"), must_fit("the largest step does not fit beside weights and adapters"):
            probe.warm_up()
            torch.cuda.synchronize()
    if override is not None:
        return MeasuredMemory(override, None)

    def graph_bytes() -> int:
        return reckon_graphs(probe.capture_graphs, probe.graph_shapes.sample()) if _has_graphs(settings, parts) else 0

    with times.part("memory"):
        return measure_memory(_largest_step(probe, parts), graph_bytes, block_bytes, settings.gpu_memory_utilization)


def _capture(runner: ModelRunner, measured: MeasuredMemory, times: StartTimes) -> int:
    with times.part("graphs"), must_fit("the graphs do not fit beside the KV cache", FEWER_BLOCKS):
        taken = kept_bytes(lambda: runner.capture_graphs(runner.graph_shapes.all))
    sizes = {"gib": taken} if measured.graph_bytes is None else {"gib": taken, "reckoned_gib": measured.graph_bytes}
    log.info("graphs_captured", num_graphs=runner.num_graphs, **{k: round(v / GIB, 3) for k, v in sizes.items()})
    return taken


def _largest_step(runner: ModelRunner, parts: RunnerParts) -> Callable[[], None]:
    def run() -> None:
        parts.images.run_largest()
        runner.run_largest_step()

    return run


def _has_graphs(settings: GeneratorSettings, parts: RunnerParts) -> bool:
    return parts.can_replay and not settings.enforce_eager
