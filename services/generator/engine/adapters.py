"""Makes what the engine needs for adapters, ledger, bank, host memory and their lifecycle, and reads what is served from the start.

Called by `engine.build`, once; an adapter that was named and cannot be served stops the start and says why.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from services.generator.adapters.modules import AdapterTarget, group_shapes, outer_shapes
from services.generator.adapters.packed import PackedAdapter
from services.generator.adapters.peft_folder import load_adapter
from services.generator.core.adapters import BankContract, describe
from services.generator.core.specs import AdapterBankSpec, SchedulerLimits
from services.generator.engine.adapter_catalog import AdapterCatalog
from services.generator.engine.adapter_lifecycle import AdapterLifecycle
from services.generator.engine.adapter_loader import AdapterLoader, AdapterPlace
from services.generator.engine.adapter_scanner import AdapterScanner
from services.generator.engine.adapter_snapshots import AdapterSnapshots
from services.generator.runner.adapter_bank import AdapterBank
from services.generator.runner.adapter_storage import AdapterStorage
from services.generator.runner.kv_cache_pool import kv_bytes_per_block
from services.generator.scheduler.adapter_registry import AdapterRegistry
from services.generator.scheduler.eviction import EvictionOrder
from services.generator.settings import GeneratorSettings
from shared.errors import ServiceError
from shared.modeling.config import DecoderConfig
from shared.modeling.decoder import DecoderWeights
from shared.observability.logging import get_logger
from shared.settings.errors import StartError

log = get_logger(__name__)

Read = Callable[[Sequence[str], Sequence[AdapterPlace]], Iterator[PackedAdapter]]
"""Read folders at start, in order; a text for each says on whose wish, for the error."""

NUM_READERS = 4
"""Adapters that are read at a time: reading, checking and packing are mostly copies, which leave Python's lock alone."""


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """Everything about the adapters of one engine; None where there are none and none may come, which then cost nothing."""

    registry: AdapterRegistry
    storage: AdapterStorage | None = None
    lifecycle: AdapterLifecycle | None = None

    @property
    def num_bank_bytes(self) -> int:
        """Device memory of the bank."""
        return 0 if self.storage is None else self.storage.bank.num_bytes

    @property
    def contract(self) -> BankContract | None:
        """What may be loaded."""
        return None if self.lifecycle is None else self.lifecycle.snapshots.contract


def load_adapters(
    settings: GeneratorSettings,
    folder: Path,
    config: DecoderConfig,
    limits: SchedulerLimits,
    weights: DecoderWeights,
) -> LoadedAdapters:
    """Read every `--lora` and `--lora-preload`, look below every `--lora-root`, and make a bank for them.

    Args:
        folder: of the base model.
        weights: of the base model; where there is a bank, its projections move there, see `AdapterBank`.
    Raises:
        StartError: one of them cannot be served; the message says which and why.
    """
    if settings.model_name in settings.adapters:
        raise StartError(f"--lora {settings.model_name}=…: that is the name of the base model")
    if not settings.has_bank:
        return LoadedAdapters(AdapterRegistry(0))
    device = weights.embedding.device
    target = _target(settings, folder, config, weights)
    spec = AdapterBankSpec(settings.max_loras, settings.max_lora_rank, limits.max_num_batched_tokens)
    storage = AdapterStorage(AdapterBank(target.banked_stacks(), spec, weights), device)
    registry = AdapterRegistry(settings.max_loras, settings.max_cpu_loras, EvictionOrder(settings.lora_eviction))
    snapshots = AdapterSnapshots(registry, _contract(settings, config, target, storage.bank.num_bytes), storage)
    catalog = AdapterCatalog(registry, storage.versions, snapshots.descriptions)

    def read(whats: Sequence[str], places: Sequence[AdapterPlace]) -> Iterator[PackedAdapter]:
        for adapter, seconds in _read_all(whats, places, target):
            snapshots.note_read(seconds)
            yield adapter

    _serve_named(settings, read, registry, catalog)
    roots = [_root(path) for path in settings.lora_root]
    scanner = AdapterScanner(roots, target, settings.model_name, settings.lora_scan_interval) if roots else None
    if scanner is not None:
        scan = scanner.scan()
        catalog.enter_scan(scan)
        snapshots.reject(scan.rejects)
        log.info("adapters_listed", num_adapters=len(scan.found), num_rejects=len(scan.rejects))
        _preload(settings, read, registry, catalog)
    lifecycle = AdapterLifecycle(
        snapshots,
        catalog,
        AdapterLoader(target, roots),
        scanner,
        base_name=settings.model_name,
        max_wait_s=settings.lora_max_wait,
    )
    return LoadedAdapters(registry, storage, lifecycle)


def _target(settings: GeneratorSettings, folder: Path, config: DecoderConfig, weights: DecoderWeights) -> AdapterTarget:
    return AdapterTarget(
        base_model=settings.model_name,
        num_layers=config.num_layers,
        shapes=group_shapes(config),
        max_rank=settings.max_lora_rank,
        dtype=weights.embedding.dtype,
        outer=outer_shapes(config),
        names=config.tensor_names,
        foreign=() if config.vision is None else config.vision.foreign,
        base_folder=folder,
        targets=frozenset(settings.lora_targets),
        is_strict_base=settings.strict_adapter_base,
        is_pinned=weights.embedding.device.type == "cuda",
    )


def _serve_named(settings: GeneratorSettings, read: Read, registry: AdapterRegistry, catalog: AdapterCatalog) -> None:
    """Every `--lora` is read, so that none is bad; those beyond the room in host memory are read again when they are wanted."""
    whats = [f"--lora {name}={path}" for name, path in settings.adapters.items()]
    places = [AdapterPlace(path, None) for path in settings.adapters.values()]
    for name, place, adapter in zip(settings.adapters, places, read(whats, places), strict=True):
        if registry.host.has_room:
            catalog.serve(name, place, adapter)
        else:
            catalog.register(name, place, describe(name, place.folder, adapter.report))


def _preload(settings: GeneratorSettings, read: Read, registry: AdapterRegistry, catalog: AdapterCatalog) -> None:
    for name in settings.lora_preload:
        version = registry.find(name)
        if version is None:
            raise StartError(f"--lora-preload {name}: there is no such adapter below a --lora-root")
        if version.is_in_host:
            continue
        if not registry.host.has_room:
            raise StartError(f"--lora-preload {name}: there is no room for it; raise --max-cpu-loras")
        place = catalog.place(version)
        (adapter,) = read([f"--lora-preload {name}"], [place])
        catalog.fill(version, place, adapter)


def _read_all(
    whats: Sequence[str], places: Sequence[AdapterPlace], target: AdapterTarget
) -> Iterator[tuple[PackedAdapter, float]]:
    """Adapters in order, each with the seconds that it took; a few are read at a time."""

    def timed(what: str, place: AdapterPlace) -> tuple[PackedAdapter, float]:
        began = time.perf_counter()
        return _read(what, place, target), time.perf_counter() - began

    pool = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="adapter-reader")
    reading: deque[Future[tuple[PackedAdapter, float]]] = deque()
    try:
        for what, place in zip(whats, places, strict=True):
            reading.append(pool.submit(timed, what, place))
            if len(reading) == NUM_READERS:  # no more than these are in memory beside those that were taken
                yield reading.popleft().result()
        while reading:
            yield reading.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read(what: str, place: AdapterPlace, target: AdapterTarget) -> PackedAdapter:
    try:
        return load_adapter(Path(place.folder), target, place.root)
    except ServiceError as error:
        raise StartError(f"{what} cannot be served: {error}") from None


def _root(path: str) -> Path:
    try:
        root = Path(path).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise StartError(f"--lora-root {path} cannot be used: {error}") from None
    if not root.is_dir():
        raise StartError(f"--lora-root {path} is no folder")
    return root


def _contract(
    settings: GeneratorSettings, config: DecoderConfig, target: AdapterTarget, bank_bytes: int
) -> BankContract:
    return BankContract(
        settings.max_lora_rank,
        settings.max_loras,
        settings.max_cpu_loras,
        tuple(sorted(settings.lora_targets)),
        bank_bytes,
        kv_tokens_per_slot=bank_bytes // settings.max_loras // kv_bytes_per_block(config, 1, target.dtype),
    )
