"""Reads a PEFT `adapter_config.json` and refuses, by name, whatever would change the numbers in a way that is not reproduced.

Every key that is known stands in one of the tables below; an unknown one is refused unless it says nothing. Rules of names follow
PEFT 0.21 (`get_pattern_key`, `check_target_module_exists`).
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequestError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),  # the others change the base weights
    "use_dora": (False,),
    "use_qalora": (False,),
    "lora_bias": (False,),
    "ensure_weight_tying": (False,),
}
"""Keys that must have one of these values, or be absent."""

HARMLESS = frozenset(
    {"task_type", "peft_version", "revision", "inference_mode", "lora_dropout", "auto_mapping", "megatron_core"}
    | {"qalora_group_size", "fan_in_fan_out"}
)
"""Keys that say how the adapter was trained, or nothing for projections of these families."""

USED = frozenset(
    {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "base_model_name_or_path", "target_modules"}
    | {"exclude_modules", "layers_to_transform", "layers_pattern"}
)


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What the numbers depend on.

    Attributes:
        base_model: what the adapter says it was trained on.
        target_modules, exclude_modules: names, a regular expression, or None.
        layers_to_transform: indices of the only layers concerned, or None for all.
    """

    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    base_model: str | None = None
    target_modules: str | tuple[str, ...] | None = None
    exclude_modules: str | tuple[str, ...] | None = None
    layers_to_transform: frozenset[int] | None = None

    def rank(self, module: str) -> int:
        """Rank of the module with this full name."""
        return int(_by_pattern(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        """What B A is multiplied with there: α / r, or α / √r (rsLoRA, arXiv:2312.03732)."""
        rank = self.rank(module)
        alpha = float(_by_pattern(self.alpha_pattern, module, self.lora_alpha))
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def concerns(self, module: str, layer: int) -> bool:
        """Whether PEFT would put an adapter on the module with this full name."""
        if self.exclude_modules is not None and _names(self.exclude_modules, module):
            return False
        if self.layers_to_transform is not None and layer not in self.layers_to_transform:
            return False
        return self.target_modules in (None, "all-linear") or _names(self.target_modules, module)


def read_peft_config(folder: Path) -> PeftConfig:
    """The checked configuration of the adapter in `folder`.

    Raises:
        InvalidRequestError: the file is missing or no JSON object, or a key asks for what is not supported; names the key.
    """
    try:
        raw = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _refusal("adapter_config.json", "is missing") from None
    except (OSError, ValueError) as error:
        raise _refusal("adapter_config.json", f"cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise _refusal("adapter_config.json", "is not a JSON object")
    _check_keys(raw)
    return PeftConfig(
        r=_number(raw, "r", 8, is_int=True),
        lora_alpha=_number(raw, "lora_alpha", 8),
        use_rslora=bool(raw.get("use_rslora")),
        rank_pattern=_pattern(raw, "rank_pattern", is_int=True),
        alpha_pattern=_pattern(raw, "alpha_pattern"),
        base_model=raw.get("base_model_name_or_path"),
        target_modules=_module_names(raw, "target_modules"),
        exclude_modules=_module_names(raw, "exclude_modules"),
        layers_to_transform=_layers(raw),
    )


def _check_keys(raw: Mapping[str, Any]) -> None:
    if raw.get("peft_type") != "LORA":
        raise _refusal("peft_type", f"is {raw.get('peft_type')!r}; only LORA adapters are supported")
    for key, value in raw.items():
        allowed = NEUTRAL.get(key)
        is_neutral = value is None or (allowed is not None and any(value is x or value == x for x in allowed))
        if allowed is not None and not is_neutral:
            raise _refusal(key, f"is {value!r}, which is not supported; only {' or '.join(map(repr, allowed))}")
        if allowed is None and key not in HARMLESS | USED and value not in (None, False, "", [], {}):
            raise _refusal(key, f"is {value!r}, which is not supported")


def _number(raw: Mapping[str, Any], key: str, default: float, *, is_int: bool = False) -> Any:
    value = raw.get(key, default)
    kinds = int if is_int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        raise _refusal(key, f"is {value!r}, not a positive {'integer' if is_int else 'number'}")
    return value


def _pattern(raw: Mapping[str, Any], key: str, *, is_int: bool = False) -> dict[str, Any]:
    values = raw.get(key) or {}
    if not isinstance(values, dict):
        raise _refusal(key, "is not an object")
    for name in values:
        _compiled(key, f"(.*\\.)?({name})$")
    return {name: _number(values, name, 0, is_int=is_int) for name in values}


def _module_names(raw: Mapping[str, Any], key: str) -> str | tuple[str, ...] | None:
    value = raw.get(key)
    if isinstance(value, str):
        _compiled(key, value)
        return value
    if value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        return None if value is None else tuple(value)
    raise _refusal(key, "is neither a string nor a list of strings")


def _layers(raw: Mapping[str, Any]) -> frozenset[int] | None:
    value = raw.get("layers_to_transform")
    if raw.get("layers_pattern") not in (None, "", [], "layers", ["layers"]):
        raise _refusal(
            "layers_pattern", f"is {raw['layers_pattern']!r}; the layers of these families are named 'layers'"
        )
    indices = [value] if isinstance(value, int) else value
    if indices is None or indices == []:
        return None
    if not isinstance(indices, list) or not all(type(index) is int for index in indices):
        raise _refusal("layers_to_transform", "is neither an integer nor a list of integers")
    return frozenset(indices)


def _compiled(key: str, expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise _refusal(key, f"{expression!r} is no regular expression: {error}") from None


def _by_pattern(pattern: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first key that is the end of the module's name, whole parts of it, as a regular expression."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _names(names: str | tuple[str, ...] | None, module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith("." + name) for name in names or ())


def _refusal(key: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{key}: {problem}", param=key)
