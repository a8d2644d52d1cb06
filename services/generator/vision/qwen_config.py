"""Reads the vision tower of a Qwen2-VL or Qwen2.5-VL config.json into one frozen description.

Called by `qwen_loader`. Where a key is absent it means what it means in transformers' configuration class.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.modeling.config_reader import ConfigReader
from shared.settings.errors import ModelFolderError

_WHERE = "config.json: vision_config"
_SHARED_DEFAULTS: Mapping[str, Any] = {
    "depth": 32,
    "num_heads": 16,
    "in_channels": 3,
    "in_chans": 3,
    "hidden_size": 3584,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN2_DEFAULTS = {**_SHARED_DEFAULTS, "embed_dim": 1280, "mlp_ratio": 4, "hidden_act": "quick_gelu"}
_QWEN2_5_DEFAULTS = {
    **_SHARED_DEFAULTS,
    "hidden_act": "silu",
    "intermediate_size": 3420,
    "window_size": 112,
    "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
}


@dataclass(frozen=True, slots=True)
class QwenVisionConfig:
    """Sizes and switches of a tower.

    Attributes:
        width: of the tower; `out_width` is the decoder's.
        inner_width: between the two halves of the MLP.
        merge_size: side, in patches, of the block that becomes one row.
        is_gated: RMSNorm and a gated MLP (Qwen2.5-VL) in place of LayerNorm and a plain one (Qwen2-VL).
        window: side, in blocks, of the squares that attention stays in; None: an image sees all of itself in every layer.
        full_layers: those where an image sees all of itself all the same.
        theta: base of the rotary frequencies.
    """

    num_layers: int
    width: int
    inner_width: int
    out_width: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    is_gated: bool
    window: int | None
    full_layers: frozenset[int]
    theta: float

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.num_heads


def read_qwen2_vision(config: Mapping[str, Any]) -> QwenVisionConfig:
    """Qwen2-VL's (arXiv:2409.12191), from the contents of config.json.

    Raises:
        ModelFolderError: a key is missing or asks for what is not supported.
    """
    reader = _reader(config, _QWEN2_DEFAULTS, activation="quick_gelu")
    width = reader.integer("embed_dim")
    return _config(
        reader,
        widths=(width, int(width * reader.number("mlp_ratio")), reader.integer("hidden_size")),
        is_gated=False,
        window=None,
        full_layers=frozenset(),
    )


def read_qwen2_5_vision(config: Mapping[str, Any]) -> QwenVisionConfig:
    """Qwen2.5-VL's (arXiv:2502.13923), from the contents of config.json.

    Raises:
        ModelFolderError: as above.
    """
    reader = _reader(config, _QWEN2_5_DEFAULTS, activation="silu")
    full = reader.value("fullatt_block_indexes")
    if not isinstance(full, list) or not all(type(layer) is int for layer in full):
        raise ModelFolderError(f"{_WHERE}: fullatt_block_indexes is {full!r}, not a list of layers")
    window = reader.integer("window_size") // reader.integer("patch_size") // reader.integer("spatial_merge_size")
    if window == 0:
        raise ModelFolderError(f"{_WHERE}: window_size is smaller than one block of patches")
    return _config(
        reader,
        widths=tuple(reader.integer(key) for key in ("hidden_size", "intermediate_size", "out_hidden_size")),
        is_gated=True,
        window=window,
        full_layers=frozenset(full),
    )


def _reader(config: Mapping[str, Any], defaults: Mapping[str, Any], activation: str) -> ConfigReader:
    values = config.get("vision_config")
    if not isinstance(values, dict):
        raise ModelFolderError("config.json has no object vision_config")
    reader = ConfigReader(values, _WHERE, defaults)
    if reader.value("hidden_act") != activation:
        raise ModelFolderError(
            f"{_WHERE}: hidden_act {reader.value('hidden_act')} is not supported; supported: {activation}"
        )
    if (reader.integer("in_channels"), reader.integer("in_chans")) != (3, 3):
        raise ModelFolderError(f"{_WHERE}: other than 3 channels are not supported")
    return reader


def _config(
    reader: ConfigReader, *, widths: tuple[int, ...], is_gated: bool, window: int | None, full_layers: frozenset[int]
) -> QwenVisionConfig:
    width, inner_width, out_width = widths
    num_heads = reader.integer("num_heads")
    if width % (4 * num_heads):
        raise ModelFolderError(f"{_WHERE}: a width of {width} gives {num_heads} heads no multiple of 4 dimensions each")
    return QwenVisionConfig(
        num_layers=reader.integer("depth"),
        width=width,
        inner_width=inner_width,
        out_width=out_width,
        num_heads=num_heads,
        patch_size=reader.integer("patch_size"),
        temporal_patch_size=reader.integer("temporal_patch_size"),
        merge_size=reader.integer("spatial_merge_size"),
        is_gated=is_gated,
        window=window,
        full_layers=full_layers,
        theta=_theta(reader.value("rope_parameters") or {}),
    )


def _theta(parameters: Mapping[str, Any]) -> float:
    rope = ConfigReader(parameters, f"{_WHERE}: rope_parameters", {"rope_type": "axial", "rope_theta": 10_000.0})
    if rope.value("rope_type") != "axial":
        raise ModelFolderError(f"{_WHERE}: rope_type {rope.value('rope_type')} is not supported; supported: axial")
    theta = float(rope.number("rope_theta"))
    rope.refuse_unread()
    return theta
