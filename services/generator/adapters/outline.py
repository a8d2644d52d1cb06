"""What a PEFT folder would change, from its configuration and the headers of its files alone; no weight is read.

Used when directories are scanned, and by `peft_folder` as the first half of a load. Nothing of a folder is used unless all of it is
understood: every tensor has its place in the model or looks like a copy of a base weight, or the folder is refused with its name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from services.generator.adapters.adapter_files import WEIGHTS, AdapterFiles
from services.generator.adapters.base_copies import BaseCopy, find_copies
from services.generator.adapters.folder_files import refusal, shown
from services.generator.adapters.modules import EMBEDDING_KEY, AdapterTarget, Place
from services.generator.adapters.peft_config import PeftConfig, is_part, read_peft_config
from services.generator.core.adapters import AdapterReport, ModuleReport, SkippedTensor

_KEY = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\."
    r"(?:lora_(?P<side>[AB])(?:\.[^.]+)?\.weight|lora_embedding_(?P<embedding_side>[AB])(?:\.[^.]+)?)"
)
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class PlannedModule:
    """A module whose A and B are there and fit; `tensors` are their names in the files."""

    module: str
    place: Place
    rank: int
    scale: float
    tensors: Mapping[str, str]

    @property
    def num_values(self) -> int:
        """Of A and B together."""
        return self.rank * (self.place.shape.in_features + self.place.out_features)


@dataclass(frozen=True, slots=True)
class Outline:
    """All of a folder; `modules` in the order of the model."""

    modules: tuple[PlannedModule, ...]
    copies: tuple[BaseCopy, ...]
    warnings: tuple[str, ...]

    def report(self, dtype: torch.dtype, why_skipped: str) -> AdapterReport:
        """For operators.

        Args:
            dtype: of the bank.
            why_skipped: what is known about the copies.
        """
        return AdapterReport(
            modules=tuple(ModuleReport(item.module, item.rank, item.scale) for item in self.modules),
            num_bytes=sum(item.num_values for item in self.modules) * dtype.itemsize,
            skipped=tuple(SkippedTensor(copy.tensor, f"{why_skipped} {copy.base_tensor}") for copy in self.copies),
            warnings=self.warnings,
        )


def inspect_adapter(folder: Path, target: AdapterTarget, root: Path | None = None) -> AdapterReport:
    """Check the configuration and the headers of the adapter in `folder`; values are looked at when it is loaded.

    Args:
        root: what all files of the folder must lie below, links followed.
    Raises:
        InvalidRequestError: it cannot be reproduced exactly, or is broken; names the key, file or tensor.
    """
    config = read_peft_config(folder, root)
    with AdapterFiles(folder, root) as files:
        return outline(config, files, target).report(target.dtype, "must turn out to be a copy of")


def outline(config: PeftConfig, files: AdapterFiles, target: AdapterTarget) -> Outline:
    """Sort all tensors of `files`.

    Raises:
        InvalidRequestError: see `inspect_adapter`.
    """
    places = {module: place for module, place in target.places().items() if config.concerns(module)}
    sides, others = _sides(files, target, places)
    if not sides:
        raise refusal(WEIGHTS, "no module of the model matches")
    modules = tuple(_planned(module, sides[module], places[module], config) for module in places if module in sides)
    for item in modules:
        _check(item, files, target)
    copies = find_copies(others, files, target)
    _check_saved(config, copies)
    return Outline(modules, copies, tuple(_warnings(config, target, places, sides)))


def _sides(
    files: AdapterFiles, target: AdapterTarget, places: Mapping[str, Place]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """By module the names of its A and B, and all names that are neither."""
    sides: dict[str, dict[str, str]] = {}
    others: list[str] = []
    for name in files.names():
        if files.dtype(name) not in _FLOATS:
            raise refusal(name, f"has dtype {files.dtype(name)}; only {', '.join(_FLOATS)} are supported")
        match = _KEY.fullmatch(name)
        if match is not None and match["module"].startswith(target.foreign):
            raise refusal(name, "is of the vision tower or the projector; only modules of the decoder can be adapted")
        module = "" if match is None else target.full_name(match["module"])
        place = places.get(module)
        if match is None or place is None or (place.key == EMBEDDING_KEY) != (match["side"] is None):
            others.append(name)
        elif sides.setdefault(module, {}).setdefault(match["side"] or match["embedding_side"], name) != name:
            raise refusal(name, "is there twice")
    return sides, others


def _planned(module: str, sides: Mapping[str, str], place: Place, config: PeftConfig) -> PlannedModule:
    scale = torch.tensor(config.scale(module), dtype=torch.float32).item()
    return PlannedModule(module, place, config.rank(module), scale, sides)


def _check(item: PlannedModule, files: AdapterFiles, target: AdapterTarget) -> None:
    if not target.has_room_for(item.module):
        name = item.module.rpartition(".")[2]
        raise refusal(item.module, f"is adapted, but the bank has no room for it; start with {name} in --lora-targets")
    if len(item.tensors) < 2:
        raise refusal(item.module, f"has lora_{next(iter(item.tensors))} without the other")
    if item.rank > target.max_rank:
        raise refusal(item.module, f"has rank {item.rank}, above --max-lora-rank {target.max_rank}")
    expected = {"A": (item.rank, item.place.shape.in_features), "B": (item.place.out_features, item.rank)}
    for side, size in expected.items():
        found = files.shape(item.tensors[side])
        if found != size:
            raise refusal(item.module, f"lora_{side} is {found}, not {size} as model and rank ask for")


def _check_saved(config: PeftConfig, copies: tuple[BaseCopy, ...]) -> None:
    for saved in config.modules_to_save:
        if not any(is_part(copy.tensor, saved) for copy in copies):
            raise refusal("modules_to_save", f"names {saved}, of which the folder has no tensor")


def _warnings(
    config: PeftConfig, target: AdapterTarget, places: Mapping[str, Place], sides: Mapping[str, object]
) -> Iterator[str]:
    if config.base_model not in (None, "", target.base_model):
        message = shown(f"the adapter names {config.base_model!r} as its base, not {target.base_model!r}")
        if target.is_strict_base:
            raise refusal("base_model_name_or_path", message)
        yield message
    absent = [module for module in places if module not in sides]
    if absent:
        yield f"{len(absent)} modules that target_modules names have no tensors, such as {absent[0]}"
