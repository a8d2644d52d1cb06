"""Reads a PEFT `adapter_config.json` and refuses, by name, whatever would change the numbers in a way that is not reproduced.

Every key that is known stands in one of the tables below; an unknown one is refused unless it says nothing. Rules of names follow
PEFT 0.21 (`get_pattern_key`, `check_target_module_exists`).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.generator.adapters import peft_values
from services.generator.adapters.folder_files import read_object, refusal
from services.generator.adapters.modules import EMBEDDING
from services.generator.adapters.peft_values import Names
from shared.modeling.vision_families import HEAD

CONFIG = "adapter_config.json"
ALL_LINEAR = "all-linear"
_SAVED = r"(^|.*\.){}($|\..*)"
_IN_LAYERS = r"(?:^|.*?\.){}\.(?P<idx>\d+)\."
_IN_ANY_LAYERS = r".*?\.[^.]*\.(?P<idx>\d+)\."

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),  # the others change the base weights
    "use_dora": (False,),
    "use_qalora": (False,),
    "lora_bias": (False,),
    "ensure_weight_tying": (False,),
}
"""Keys that must have one of these values, or be absent or null."""

HARMLESS = frozenset(
    {"task_type", "peft_version", "revision", "inference_mode", "lora_dropout", "auto_mapping", "megatron_core"}
    | {"qalora_group_size", "eva_config", "fan_in_fan_out"}
)
"""Keys that say how the adapter was trained, or nothing for modules of these families, as `fan_in_fan_out`, which PEFT itself takes
back for a `Linear`."""

USED = frozenset(
    {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "base_model_name_or_path", "target_modules"}
    | {"exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save"}
)


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What the numbers depend on.

    Attributes:
        base_model: what the adapter says it was trained on.
        modules_to_save: modules that have no adapter, but copies of their weights in the folder.
        layers_to_transform: indices of the only layers concerned, or None for all.
        layers_pattern: what the list of layers may be called, as regular expressions; none is anything.
    """

    r: int
    lora_alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    base_model: str | None
    target_modules: Names
    exclude_modules: Names
    modules_to_save: tuple[str, ...]
    layers_to_transform: frozenset[int] | None
    layers_pattern: tuple[str, ...]

    def rank(self, module: str) -> int:
        """Rank of the module with this full name."""
        return int(_by_pattern(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        """What B A is multiplied with there: α / r, or α / √r (rsLoRA, arXiv:2312.03732)."""
        rank = self.rank(module)
        alpha = _by_pattern(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def concerns(self, module: str) -> bool:
        """Whether PEFT would put an adapter on the module with this full name."""
        if _names(self.exclude_modules, module) or any(is_part(module, saved) for saved in self.modules_to_save):
            return False
        if self.target_modules == ALL_LINEAR:
            return module.rpartition(".")[2] not in (EMBEDDING, HEAD)
        is_named = _names(self.target_modules, module)
        is_named_whole = isinstance(self.target_modules, str) or module in self.target_modules
        return is_named and (is_named_whole or self.layers_to_transform is None or self._is_in_layers(module))

    def _is_in_layers(self, module: str) -> bool:
        """The first number of the module's name, or the first after one of the names of the list of layers, is one of ours."""
        expressions = [_IN_LAYERS.format(name) for name in self.layers_pattern] or [_IN_ANY_LAYERS]
        matches = (re.match(expression, module) for expression in expressions)
        match = next((match for match in matches if match is not None), None)
        return match is not None and int(match["idx"]) in (self.layers_to_transform or ())


def is_part(name: str, saved: str) -> bool:
    """Whether `name`, of a module or a tensor, has among its parts one of `modules_to_save`."""
    return re.match(_SAVED.format(saved), name) is not None


def read_peft_config(folder: Path, root: Path | None = None) -> PeftConfig:
    """The checked configuration of the adapter in `folder`.

    Args:
        root: what the file must lie below, links followed.
    Raises:
        InvalidRequestError: the file is missing or no JSON object, or a key asks for what is not supported; names the key.
    """
    return parse_peft_config(read_object(folder, CONFIG, root))


def parse_peft_config(raw: Mapping[str, Any]) -> PeftConfig:
    """The same from the object that the file holds."""
    _check_keys(raw)
    config = PeftConfig(
        r=peft_values.integer(raw, "r", 8),
        lora_alpha=peft_values.number(raw, "lora_alpha", 8),
        use_rslora=peft_values.flag(raw, "use_rslora"),
        rank_pattern=peft_values.integers(raw, "rank_pattern"),
        alpha_pattern=peft_values.numbers(raw, "alpha_pattern"),
        base_model=peft_values.text(raw, "base_model_name_or_path"),
        target_modules=_target_modules(raw),
        exclude_modules=peft_values.names(raw, "exclude_modules"),
        modules_to_save=_expressions(raw, "modules_to_save", _SAVED),
        layers_to_transform=peft_values.indices(raw, "layers_to_transform"),
        layers_pattern=_expressions(raw, "layers_pattern", _IN_LAYERS),
    )
    _check_layers(raw, config)
    return config


def _check_keys(raw: Mapping[str, Any]) -> None:
    if raw.get("peft_type") != "LORA":
        raise refusal("peft_type", f"is {raw.get('peft_type')!r}; only LORA adapters are supported")
    for key, value in raw.items():
        allowed = NEUTRAL.get(key)
        if allowed is not None and value is not None and value not in allowed:
            raise refusal(key, f"is {value!r}, which is not supported; only {' or '.join(map(repr, allowed))}")
        is_known = allowed is not None or key in HARMLESS or key in USED
        if not (is_known or value is None or value is False or value in ("", [], {})):
            raise refusal(key, f"is {value!r}, which is not supported")


def _target_modules(raw: Mapping[str, Any]) -> Names:
    names = peft_values.names(raw, "target_modules")
    if not names:
        raise refusal("target_modules", "names no module; PEFT writes down which ones it has adapted")
    return ALL_LINEAR if isinstance(names, str) and names.lower() == ALL_LINEAR else names


def _expressions(raw: Mapping[str, Any], key: str, around: str) -> tuple[str, ...]:
    """One regular expression or a list of them, each for the part of a name that `around` leaves open."""
    value = raw.get(key)
    expressions = (value,) if isinstance(value, str) and value else peft_values.strings(raw, key)
    peft_values.check_expressions(key, map(around.format, expressions))
    return expressions


def _check_layers(raw: Mapping[str, Any], config: PeftConfig) -> None:
    """What PEFT refuses itself."""
    for key in ("layers_to_transform", "layers_pattern"):
        if isinstance(config.target_modules, str) and raw.get(key) is not None:
            raise refusal(key, "cannot be used when target_modules is a string")
    if any("|" in expression for expression in config.layers_pattern):  # would end what PEFT writes around it
        raise refusal("layers_pattern", "has a choice in an expression; PEFT takes a list of expressions instead")
    if config.layers_pattern and raw.get("layers_to_transform") is None:
        raise refusal("layers_pattern", "says nothing without layers_to_transform")


def _by_pattern(pattern: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first key that is the end of the module's name, whole parts of it, as a regular expression."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _names(names: Names, module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith("." + name) for name in names)
