"""Loads the adapters that the settings name and makes what the engine needs for them: the ledger, the bank, host memory.

Called by `engine.build`, once, at start; an adapter that cannot be served stops the start and says why.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from services.generator.adapters.modules import AdapterTarget, group_shapes, outer_shapes
from services.generator.adapters.packed import PackedAdapter
from services.generator.adapters.peft_folder import load_adapter
from services.generator.core.messages import AdapterInfo
from services.generator.core.specs import AdapterBankSpec, SchedulerLimits
from services.generator.runner.adapter_bank import AdapterBank
from services.generator.runner.model_runner import AdapterStorage
from services.generator.scheduler.adapter_registry import AdapterRegistry
from services.generator.settings import GeneratorSettings
from shared.errors import InvalidRequestError
from shared.modeling.config import DecoderConfig
from shared.observability.logging import get_logger
from shared.settings.errors import StartError

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """Everything about the adapters of one engine; `storage` is None where there are none, which then cost nothing."""

    registry: AdapterRegistry
    storage: AdapterStorage | None
    infos: list[AdapterInfo]

    @property
    def num_bank_bytes(self) -> int:
        """Device memory of the bank."""
        return 0 if self.storage is None else self.storage.bank.num_bytes


def load_adapters(
    settings: GeneratorSettings,
    folder: Path,
    config: DecoderConfig,
    limits: SchedulerLimits,
    dtype: torch.dtype,
    device: torch.device,
) -> LoadedAdapters:
    """Read every `--lora`, and make a bank for them.

    Args:
        folder: of the base model.
    Raises:
        StartError: one of them cannot be served; the message says which and why.
    """
    if settings.model_name in settings.adapters:
        raise StartError(f"--lora {settings.model_name}=…: that is the name of the base model")
    if not settings.lora:
        return LoadedAdapters(AdapterRegistry(0), None, [])
    target = AdapterTarget(
        base_model=settings.model_name,
        num_layers=config.num_layers,
        shapes=group_shapes(config),
        max_rank=settings.max_lora_rank,
        dtype=dtype,
        outer=outer_shapes(config),
        base_folder=folder,
        targets=frozenset(settings.lora_targets),
    )
    spec = AdapterBankSpec(settings.max_loras, settings.max_lora_rank, limits.max_num_batched_tokens)
    bank = AdapterBank(target.banked_groups(), spec, dtype, device)
    loaded = LoadedAdapters(AdapterRegistry(settings.max_loras), AdapterStorage(bank, {}), [])
    for name, path in settings.adapters.items():
        _load(loaded, name, path, target)
    return loaded


def _load(loaded: LoadedAdapters, name: str, path: str, target: AdapterTarget) -> None:
    try:
        adapter = load_adapter(Path(path), target)
    except InvalidRequestError as error:
        raise StartError(f"--lora {name}={path} cannot be served: {error}") from None
    assert loaded.storage is not None  # noqa: S101 - made by the caller
    version = loaded.registry.add(name, adapter.kv_digest)
    loaded.storage.versions[version.version_id] = adapter
    loaded.infos.append(_info(name, path, adapter))
    for warning in adapter.warnings:
        log.warning("adapter_warning", name=name, warning=warning)
    log.info("adapter_loaded", name=name, digest=adapter.digest.hex()[:12], max_rank=adapter.max_rank)


def _info(name: str, path: str, adapter: PackedAdapter) -> AdapterInfo:
    return AdapterInfo(name, path, adapter.digest.hex(), adapter.max_rank, len(adapter.modules), adapter.num_bytes)
