"""The table of vision-language architectures: which decoder they have, and how their folders name what belongs to it.

Read by whoever needs the decoder's part of a config.json or the decoder's tensors. Knows no tower. A new family is one row here.
Must not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.modeling.families import FAMILIES, SIZE_KEYS
from shared.settings.errors import ModelFolderError

HEAD = "lm_head"
"""Place of the head, which stands beside the decoder and not in it."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """What a folder's saver wrote before the decoder's names, such as `layers.0.mlp.up_proj.weight`, and the name of the head."""

    prefix: str
    head: str = "lm_head.weight"

    def place(self, name: str) -> str | None:
        """The part of a module's name that does not depend on the folder, such as `layers.0.mlp.up_proj`; None: not named so."""
        if name == self.head.removesuffix(".weight"):
            return HEAD
        return name.removeprefix(self.prefix) if name.startswith(self.prefix) else None

    def name(self, place: str) -> str:
        """The other way round."""
        return self.head.removesuffix(".weight") if place == HEAD else self.prefix + place


BARE = TensorNames("")
"""Folders saved from the bare model, without its head."""
WITH_HEAD = TensorNames("model.")

_LANGUAGE_MODEL = TensorNames("model.language_model.")
"""Modules as transformers has named them since 4.52."""
_WHOLE_LANGUAGE_MODEL = TensorNames("language_model.model.", "language_model.lm_head.weight")
"""A decoder with its own head inside: as LLaVA's were named before, and are in files to this day."""


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """What sets a family apart for the decoder's reader.

    Attributes:
        names: the namings that folders have, one per folder.
        foreign: beginnings of the names of tensors that do not belong to the decoder.
        decoder: architecture of its decoder; None where `text_config` says which.
    """

    names: tuple[TensorNames, ...]
    foreign: tuple[str, ...]
    decoder: str | None = None


VISION_FAMILIES: Mapping[str, VisionFamily] = {
    # LLaVA-1.5, arXiv:2310.03744, and what has its layout: any tower, an MLP, any decoder.
    "LlavaForConditionalGeneration": VisionFamily(
        names=(_LANGUAGE_MODEL, _WHOLE_LANGUAGE_MODEL),
        foreign=("model.vision_tower.", "model.multi_modal_projector.", "vision_tower.", "multi_modal_projector."),
    ),
    # Qwen2-VL, arXiv:2409.12191, and Qwen2.5-VL, arXiv:2502.13923.
    **dict.fromkeys(
        ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        VisionFamily(
            names=(_LANGUAGE_MODEL, WITH_HEAD), foreign=("model.visual.", "visual."), decoder="Qwen2VLTextModel"
        ),
    ),
}

_BY_MODEL_TYPE = {family.model_type: name for name, family in FAMILIES.items()}

_OF_THE_WHOLE = ("dtype", "torch_dtype", "eos_token_id", "quantization_config", "compression_config")
"""Keys that hold for the decoder too and, where both have one, before its own."""


def vision_family(config: Mapping[str, Any]) -> VisionFamily | None:
    """The family of the model that a config.json describes; None for one without a tower."""
    name = architecture_in(config, VISION_FAMILIES)
    return None if name is None else VISION_FAMILIES[name]


def architecture_in(config: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """The first of its `architectures` that is `known`."""
    names = config.get("architectures")
    return next((str(name) for name in names if name in known), None) if isinstance(names, list) else None


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decoder's part of a config.json as if it were a file of its own; for a model without a tower, all of it.

    Keys stand in `text_config`, or in folders without one, as Qwen2-VL's first, at the top.
    Raises:
        ModelFolderError: it does not say which decoder there is.
    """
    family = vision_family(config)
    if family is None:
        return config
    nested = config.get("text_config") or {}
    if not isinstance(nested, dict):
        raise ModelFolderError("config.json: text_config is not an object")
    architecture = family.decoder or _decoder_of(nested)
    own = {**_defaults(architecture), **(nested or config)}
    merged = {**own, **_of_the_whole(config), "architectures": [architecture]}
    if config.get("tie_word_embeddings"):  # either may say so
        merged["tie_word_embeddings"] = True
    return merged


def _defaults(architecture: str) -> dict[str, Any]:
    """A nested config leaves out what its configuration class has as a default, sizes too."""
    decoder = FAMILIES[architecture]
    return {**decoder.defaults, **dict(zip(SIZE_KEYS, decoder.sizes, strict=True))}


def _of_the_whole(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in _OF_THE_WHOLE if config.get(key) is not None}


def _decoder_of(nested: Mapping[str, Any]) -> str:
    architecture = architecture_in(nested, FAMILIES) or _BY_MODEL_TYPE.get(str(nested.get("model_type")))
    if architecture is None:
        declared = nested.get("architectures") or nested.get("model_type") or "(none)"
        raise ModelFolderError(
            f"text_config: decoder {declared} is not supported; supported: {', '.join(_BY_MODEL_TYPE)}"
        )
    return architecture
