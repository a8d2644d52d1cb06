"""Reads how a model rotates its queries and keys, from both dialects of config.json.

Called by `config`; the result goes to `rope`. Refuses what it does not know, since every parameter here changes the numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.modeling.config_reader import ConfigReader
from shared.modeling.families import Sections
from shared.modeling.rope_scaling import SCALINGS, RopeScaling
from shared.settings.errors import ModelFolderError

_HARMLESS = ("rope_type", "type", "finetuned", "original_max_position_embeddings", "partial_rotary_factor")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding of whole heads.

    Attributes:
        kind: name of the scaling law, as in config.json.
        theta: base of the frequencies.
        head_dim: dimensions of a head, all rotated.
        sections: see `sectioned_rows`; None where all pairs turn by one position.
    """

    kind: str
    theta: float
    head_dim: int
    scaling: RopeScaling
    sections: Sections | None = None


def read_rope_config(
    config: Mapping[str, Any],
    head_dim: int,
    default_theta: float,
    max_positions: int,
    default_sections: Sections | None = None,
) -> RopeConfig:
    """Understand `rope_theta` and `rope_scaling` (older folders) or `rope_parameters` (newer ones, with theta inside).

    Args:
        default_sections: where the folder names none; None: the family has no sections, and to name some is an error.
    Raises:
        ModelFolderError: a scaling law or a parameter that is not supported, or one that is missing.
    """
    declared = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(declared, dict):
        raise ModelFolderError(f"config.json: the rope parameters are {declared!r}, not an object")
    parameters = dict(declared)
    _take_outer(config, parameters)
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    if kind == "mrope" and default_sections is not None:
        kind = "default"  # older folders' name for sections, which scale nothing
    if kind not in SCALINGS:
        raise ModelFolderError(f"rope scaling {kind} is not supported; supported: {', '.join(SCALINGS)}")
    if parameters.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        raise ModelFolderError("partial_rotary_factor, a rotary embedding of a part of the head, is not supported")
    reader = ConfigReader(parameters, f"rope scaling {kind}")
    theta = reader.optional_number("rope_theta") or default_theta
    scaling = SCALINGS[kind].read(reader, max_positions)
    sections = None if default_sections is None else _read_sections(reader, default_sections)
    reader.refuse_unread(_HARMLESS)
    rope = RopeConfig(kind, float(theta), head_dim, scaling, sections)
    _check(rope)
    return rope


def _take_outer(config: Mapping[str, Any], parameters: dict[str, Any]) -> None:
    """Parameters that some folders keep beside the object, with the precedence that transformers gives them."""
    for key in ("rope_theta", "partial_rotary_factor"):
        if config.get(key) is not None:
            parameters.setdefault(key, config[key])
    if config.get("original_max_position_embeddings") is not None:
        parameters["original_max_position_embeddings"] = config["original_max_position_embeddings"]


def _read_sections(reader: ConfigReader, default: Sections) -> Sections:
    sections = default if reader.value("mrope_section") is None else reader.numbers("mrope_section")
    if len(sections) != 3 or any(type(section) is not int or section < 1 for section in sections):
        raise ModelFolderError(f"mrope_section {list(sections)} is not three positive whole numbers")
    time, height, width = map(int, sections)
    return time, height, width


def _check(rope: RopeConfig) -> None:
    if rope.head_dim % 2:
        raise ModelFolderError(f"head_dim {rope.head_dim} is odd, and rotary embedding turns pairs")
    if rope.sections is not None and rope.kind != "default":
        raise ModelFolderError(f"rope scaling {rope.kind} together with mrope_section is not supported")
    if rope.sections is not None and sum(rope.sections) != rope.head_dim // 2:
        raise ModelFolderError(f"mrope_section {list(rope.sections)} does not add up to {rope.head_dim // 2} pairs")
    factors = getattr(rope.scaling, "short_factors", None)
    if factors is not None and len(factors) != rope.head_dim // 2:
        raise ModelFolderError(
            f"rope scaling {rope.kind} has {len(factors)} short factors for {rope.head_dim // 2} pairs"
        )
