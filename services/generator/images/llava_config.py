"""Reads what a LLaVA folder's config.json says of its tower and projector into one frozen description.

Used by the image recipe for sizes and by `vision.llava` for the modules. Must not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.generator.core.images import Grid
from shared.modeling.config_reader import ConfigReader
from shared.settings.errors import ModelFolderError

ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "quick_gelu")

_SIZES = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


@dataclass(frozen=True, slots=True)
class TowerKind:
    """What sets CLIP's tower (arXiv:2103.00020) and SigLIP's (arXiv:2303.15343) apart.

    Attributes:
        has_class_row: a learned row stands before those of the patches.
        has_patch_bias: the patch convolution has one.
        has_pre_norm: a norm stands between the embeddings and the first layer.
        defaults: what absent keys mean, as in transformers' configuration classes.
    """

    has_class_row: bool
    has_patch_bias: bool
    has_pre_norm: bool
    defaults: Mapping[str, Any]


_OF_CLIP = {"patch_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
_OF_SIGLIP = {"patch_size": 16, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
_OF_BOTH = {**_SIZES, "image_size": 224, "num_channels": 3}

TOWERS: Mapping[str, TowerKind] = {
    "clip_vision_model": TowerKind(True, False, True, {**_OF_BOTH, **_OF_CLIP}),
    "siglip_vision_model": TowerKind(False, True, False, {**_OF_BOTH, **_OF_SIGLIP}),
}


@dataclass(frozen=True, slots=True)
class LlavaConfig:
    """Sizes and switches of tower and projector.

    Attributes:
        image_size: both sides of what the tower sees, in pixels; `patch_size` likewise of a patch.
        num_stored_layers: layers that the folder has; more than run where the features come from before the last.
        feature_layers: whose outputs, side by side, the projector sees; 0 is what goes into the first layer.
        drops_first_row: the first row of each image is left out, which is the class row where there is one.
        projector_act: activation between the projector's two products.
    """

    kind: TowerKind
    image_token_id: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    image_size: int
    patch_size: int
    norm_eps: float
    activation: str
    num_stored_layers: int
    feature_layers: tuple[int, ...]
    drops_first_row: bool
    projector_act: str
    has_projector_bias: bool

    @property
    def patches_per_side(self) -> int:
        """Whole patches; what is left over at right and bottom is not seen."""
        return self.image_size // self.patch_size

    @property
    def num_positions(self) -> int:
        """Rows inside the tower."""
        return self.patches_per_side**2 + self.kind.has_class_row

    @property
    def num_layers(self) -> int:
        """Layers that must run for the features."""
        return max(self.feature_layers)

    @property
    def grid(self) -> Grid:
        """Rows (t, h, w) that an image takes in the prompt: its patches, or a line where another row is with or not with them."""
        num_rows, side = self.num_positions - self.drops_first_row, self.patches_per_side
        return (1, side, side) if num_rows == side * side else (1, 1, num_rows)


def read_llava_config(config: Mapping[str, Any]) -> LlavaConfig:
    """Understand the contents of the config.json of a `LlavaForConditionalGeneration`.

    Raises:
        ModelFolderError: a tower, a switch or a size that is not supported.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        raise ModelFolderError("config.json has no vision_config")
    name = str(vision.get("model_type") or "clip_vision_model")
    if name not in TOWERS:
        raise ModelFolderError(f"vision_config: model_type {name} is not supported; supported: {', '.join(TOWERS)}")
    kind = TOWERS[name]
    outer, tower = ConfigReader(config, "config.json"), ConfigReader(vision, "vision_config", kind.defaults)
    if tower.integer("num_channels") != 3:
        raise ModelFolderError("vision_config: num_channels other than 3 is not supported")
    hidden_size, num_heads = tower.integer("hidden_size"), tower.integer("num_attention_heads")
    num_layers = tower.integer("num_hidden_layers")
    if hidden_size % num_heads:
        raise ModelFolderError("vision_config: hidden_size is no multiple of num_attention_heads")
    return LlavaConfig(
        kind=kind,
        image_token_id=_image_token_id(outer),
        hidden_size=hidden_size,
        intermediate_size=tower.integer("intermediate_size"),
        num_heads=num_heads,
        image_size=tower.integer("image_size"),
        patch_size=tower.integer("patch_size"),
        norm_eps=tower.number("layer_norm_eps"),
        activation=_activation(tower, "vision_config: hidden_act", "hidden_act"),
        num_stored_layers=num_layers,
        feature_layers=_feature_layers(outer.value("vision_feature_layer"), num_layers),
        drops_first_row=_drops_first_row(outer),
        projector_act=_activation(outer, "projector_hidden_act", "projector_hidden_act"),
        has_projector_bias=outer.boolean("multimodal_projector_bias", default=True),
    )


def _image_token_id(outer: ConfigReader) -> int:
    """`image_token_index`, or `image_token_id` in some folders."""
    value = outer.optional_int("image_token_index") or outer.optional_int("image_token_id")
    return 32_000 if value is None else value


def _activation(reader: ConfigReader, where: str, key: str) -> str:
    name = reader.value(key) or "gelu"
    if name not in ACTIVATIONS:
        raise ModelFolderError(f"{where} {name} is not supported; supported: {', '.join(ACTIVATIONS)}")
    return str(name)


def _feature_layers(value: Any, num_layers: int) -> tuple[int, ...]:
    """Indices into the outputs of all layers, what goes into the first one before them, counted from either end."""
    indices = [-2 if value is None else value] if not isinstance(value, list) else value
    if not indices or any(type(index) is not int or not -num_layers - 1 <= index <= num_layers for index in indices):
        raise ModelFolderError(f"vision_feature_layer {value} does not fit a tower of {num_layers} layers")
    return tuple(index % (num_layers + 1) for index in indices)


def _drops_first_row(outer: ConfigReader) -> bool:
    strategy = outer.value("vision_feature_select_strategy") or "default"
    if strategy not in ("default", "full"):
        raise ModelFolderError(f"vision_feature_select_strategy {strategy} is not supported; supported: default, full")
    return bool(strategy == "default")
