"""Reads a PEFT LoRA folder whole, checks it whole, and packs it for the bank.

Called before an adapter is served. Nothing of it is used unless all of it is understood: every tensor of the file has its place
in the model, or the folder is refused with the tensor's name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from services.generator.adapters.modules import GroupShape
from services.generator.adapters.packed import (
    GroupKey,
    ModuleReport,
    ModuleWeights,
    PackedAdapter,
    PackedGroup,
    digest_of,
)
from services.generator.adapters.peft_config import PeftConfig, read_peft_config
from shared.errors import InvalidRequestError

WEIGHTS = "adapter_model.safetensors"
_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.[^.]+)?\.weight")
_MODULE = re.compile(r"(?:model\.)?layers\.(?P<layer>\d+)\.(?P<name>\w+\.\w+)")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """The base model that adapters are read for.

    Attributes:
        base_model: name it is served under, which an adapter's own idea of its base is compared with.
        shapes: its fused projections, see `group_shapes`.
        max_rank: ranks that a slot of the bank has room for.
        dtype: of the bank.
    """

    base_model: str
    num_layers: int
    shapes: Mapping[str, GroupShape]
    max_rank: int
    dtype: torch.dtype


def load_adapter(folder: Path, target: AdapterTarget) -> PackedAdapter:
    """The adapter in `folder`, ready to be copied into a slot.

    Raises:
        InvalidRequestError: it cannot be reproduced exactly, or is broken; names the key, file or tensor.
    """
    config = read_peft_config(folder)
    weights = _modules(_read_tensors(folder), config, target)
    influences_kv = [item for item in weights if _influences_kv(item.module, target)]
    return PackedAdapter(
        groups=_pack(weights, target),
        digest=digest_of(weights),
        kv_digest=digest_of(influences_kv) if influences_kv else None,
        modules=tuple(ModuleReport(item.module, len(item.a), item.scale) for item in weights),
        warnings=_warnings(config, target),
    )


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = (
            " (adapter_model.bin is pickled, which is not read)" if (folder / "adapter_model.bin").exists() else ""
        )
        raise InvalidRequestError(f"{WEIGHTS}: is missing{pickled}", param=WEIGHTS)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise InvalidRequestError(f"{WEIGHTS}: cannot be read: {error}", param=WEIGHTS) from None


def _modules(tensors: Mapping[str, Tensor], config: PeftConfig, target: AdapterTarget) -> list[ModuleWeights]:
    """Pairs of A and B by module, each checked against the model and the configuration."""
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _KEY.fullmatch(name)
        if match is None or not _is_known(match["module"], config, target):
            raise InvalidRequestError(f"{name}: is not a LoRA tensor of a module that can be adapted", param=name)
        if tensor.dtype not in _FLOATS:
            raise InvalidRequestError(f"{name}: has dtype {tensor.dtype}", param=name)
        if sides.setdefault(_full_name(match["module"]), {}).setdefault(match["side"], tensor) is not tensor:
            raise InvalidRequestError(f"{name}: is there twice", param=name)
    if not sides:
        raise InvalidRequestError(f"{WEIGHTS}: no module of the model matches", param=WEIGHTS)
    return [_module(module, pair, config, target) for module, pair in sorted(sides.items())]


def _module(module: str, pair: Mapping[str, Tensor], config: PeftConfig, target: AdapterTarget) -> ModuleWeights:
    if len(pair) < 2:
        raise InvalidRequestError(f"{module}: has lora_{next(iter(pair))} without the other", param=module)
    rank = config.rank(module)
    shape, index = _shape(module, target)
    if rank > target.max_rank:
        raise InvalidRequestError(f"{module}: has rank {rank}, above --max-lora-rank {target.max_rank}", param=module)
    expected = {"A": (rank, shape.in_features), "B": (shape.slice_sizes[index], rank)}
    for side, size in expected.items():
        if tuple(pair[side].shape) != size:
            raise InvalidRequestError(
                f"{module}: lora_{side} is {tuple(pair[side].shape)}, not {size} as model and rank ask for",
                param=module,
            )
    a, b = (pair[side].to(target.dtype) for side in "AB")
    if not (a.isfinite().all() and b.isfinite().all()):
        raise InvalidRequestError(f"{module}: has values that are not finite as {target.dtype}", param=module)
    return ModuleWeights(module, a, b, config.scale(module))


def _is_known(module: str, config: PeftConfig, target: AdapterTarget) -> bool:
    match = _MODULE.fullmatch(module)
    if match is None or int(match["layer"]) >= target.num_layers:
        return False
    is_ours = any(match["name"] in shape.modules for shape in target.shapes.values())
    return is_ours and config.concerns(_full_name(module), int(match["layer"]))


def _full_name(module: str) -> str:
    """As the model with its head names it, which is what patterns are written for."""
    return module if module.startswith("model.") else f"model.{module}"


def _place(module: str) -> tuple[int, str]:
    """Layer and name within it."""
    match = _MODULE.fullmatch(module)
    assert match is not None  # noqa: S101 - checked when its tensors were read
    return int(match["layer"]), match["name"]


def _shape(module: str, target: AdapterTarget) -> tuple[GroupShape, int]:
    name = _place(module)[1]
    shape = next(shape for shape in target.shapes.values() if name in shape.modules)
    return shape, shape.modules.index(name)


def _influences_kv(module: str, target: AdapterTarget) -> bool:
    """Whether it comes before some layer's keys and values: all do but what follows those of the last layer."""
    layer, name = _place(module)
    return layer < target.num_layers - 1 or name in ("self_attn.k_proj", "self_attn.v_proj")


def _pack(weights: list[ModuleWeights], target: AdapterTarget) -> dict[GroupKey, PackedGroup]:
    by_place = {_place(item.module): item for item in weights}
    groups: dict[GroupKey, PackedGroup] = {}
    for layer in sorted({layer for layer, _ in by_place}):
        for group, shape in target.shapes.items():
            slices = [by_place.get((layer, name)) for name in shape.modules]
            if any(slices):
                groups[layer, group] = _pack_group(slices, shape, target.dtype)
    return groups


def _pack_group(slices: list[ModuleWeights | None], shape: GroupShape, dtype: torch.dtype) -> PackedGroup:
    ranks = [0 if item is None else len(item.a) for item in slices]
    a = torch.zeros(len(slices), max(ranks), shape.in_features, dtype=dtype)
    b = torch.zeros(shape.out_features, max(ranks), dtype=dtype)
    for index, (item, rows) in enumerate(zip(slices, torch.split(b, list(shape.slice_sizes)), strict=True)):
        if item is not None:
            a[index, : ranks[index]] = item.a
            rows[:, : ranks[index]] = item.b
    scales = torch.tensor([0.0 if item is None else item.scale for item in slices], dtype=torch.float32)
    return PackedGroup(a, b, torch.tensor(ranks, dtype=torch.int32), scales)


def _warnings(config: PeftConfig, target: AdapterTarget) -> tuple[str, ...]:
    if config.base_model in (None, target.base_model):
        return ()
    return (f"the adapter names {config.base_model!r} as its base, not {target.base_model!r}",)
