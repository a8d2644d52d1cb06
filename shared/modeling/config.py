"""Reads a decoder's config.json, in both dialects that Hugging Face folders have, into one frozen description.

Used by the decoder's loader and by whoever needs a model's sizes. Refuses what would change the numbers and is not supported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.modeling.config_reader import ConfigReader
from shared.modeling.config_refusals import refuse_unsupported
from shared.modeling.families import FAMILIES, Family, Windows
from shared.modeling.rope_config import RopeConfig, read_rope_config
from shared.modeling.vision_families import (
    BARE,
    VISION_FAMILIES,
    WITH_HEAD,
    TensorNames,
    VisionFamily,
    architecture_in,
    text_config,
    vision_family,
)
from shared.settings.errors import ModelFolderError


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How one layer attends.

    Attributes:
        window_index: which of `DecoderConfig.windows` it sees.
        has_rope: its queries and keys are rotated.
    """

    window_index: int
    has_rope: bool


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and switches of a Llama-class decoder.

    Attributes:
        context_len: longest sequence in tokens that the model was made for.
        windows: the different windows of attention among the layers, at most two: how many positions a token sees, its own
            included; None is all before it.
        layers: [L] what differs from layer to layer.
        has_qk_norm: queries and keys go through an RMSNorm per head before they are rotated.
        dtype: name of the precision in which the folder's weights are stored.
        vision: the vision-language family that the decoder is a part of; None: it is the whole model.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_len: int
    norm_eps: float
    rope: RopeConfig
    windows: tuple[int | None, ...]
    layers: tuple[LayerKind, ...]
    has_tied_head: bool
    has_qk_norm: bool
    has_qkv_bias: bool
    has_o_bias: bool
    has_mlp_bias: bool
    dtype: str
    vision: VisionFamily | None = None

    @property
    def tensor_names(self) -> tuple[TensorNames, ...]:
        """How folders of this model may name its tensors; the first is how its modules are named."""
        return (WITH_HEAD, BARE) if self.vision is None else self.vision.names

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads (or all value heads) together."""
        return self.num_kv_heads * self.head_dim


def read_decoder_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Understand the contents of a config.json; of a vision-language model's, what it says of its decoder.

    Raises:
        ModelFolderError: an architecture, activation, rope scaling, layout of windows or quantisation that is not supported,
            a key known to change the numbers, or a missing one.
    """
    vision = vision_family(config)
    config = text_config(config)
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    refuse_unsupported(config, has_unrotated_layers=family.has_unrotated_layers)
    reader = ConfigReader(config, "config.json", family.defaults)
    num_layers, num_heads = reader.integer("num_hidden_layers"), reader.integer("num_attention_heads")
    hidden_size = reader.integer("hidden_size")
    head_dim = reader.optional_int("head_dim") or hidden_size // num_heads
    max_positions = reader.integer("max_position_embeddings")
    rope = read_rope_config(config, head_dim, family.default_theta, max_positions, family.default_sections)
    windows = family.windows(reader, num_layers)
    norm_eps = reader.optional_number("rms_norm_eps")
    return DecoderConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(reader, num_heads),
        head_dim=head_dim,
        vocab_size=reader.integer("vocab_size"),
        # A folder may keep the length before scaling here and declare YaRN's factor beside it, as Qwen recommends.
        context_len=max(max_positions, rope.scaling.context_len or 0),
        norm_eps=1e-6 if norm_eps is None else norm_eps,
        rope=rope,
        windows=_different(windows),
        layers=_layers(reader, family, windows),
        has_tied_head=reader.boolean("tie_word_embeddings"),
        has_qk_norm=family.has_qk_norm,
        has_qkv_bias=_switch(reader, family.qkv_bias),
        has_o_bias=_switch(reader, family.o_bias),
        has_mlp_bias=_switch(reader, family.mlp_bias),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        vision=vision,
    )


def _architecture(config: Mapping[str, Any]) -> str:
    known = architecture_in(config, FAMILIES)
    if known is None:
        names = config.get("architectures") or []
        supported = ", ".join(sorted([*FAMILIES, *VISION_FAMILIES]))
        raise ModelFolderError(f"architecture {', '.join(names) or '(none)'} is not supported; supported: {supported}")
    return known


def _num_kv_heads(reader: ConfigReader, num_heads: int) -> int:
    num_kv_heads = reader.optional_int("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise ModelFolderError(f"{num_heads} attention heads cannot share {num_kv_heads} key-value heads evenly")
    return num_kv_heads


def _switch(reader: ConfigReader, bias: bool | str) -> bool:
    return reader.boolean(bias) if isinstance(bias, str) else bias


def _different(windows: Windows) -> tuple[int | None, ...]:
    return tuple(dict.fromkeys(windows))


def _layers(reader: ConfigReader, family: Family, windows: Windows) -> tuple[LayerKind, ...]:
    different = _different(windows)
    is_rotated = _rotated_layers(reader, len(windows)) if family.has_unrotated_layers else (True,) * len(windows)
    return tuple(
        LayerKind(different.index(window), has_rope) for window, has_rope in zip(windows, is_rotated, strict=True)
    )


def _rotated_layers(reader: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """`no_rope_layers` has a 1, despite its name, where a layer rotates; without it each n-th layer does not."""
    flags = reader.value("no_rope_layers")
    if flags is None:
        interval = reader.integer("no_rope_layer_interval")
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    if not isinstance(flags, list) or len(flags) < num_layers:
        raise ModelFolderError(f"no_rope_layers does not say for each of {num_layers} layers whether it rotates")
    return tuple(bool(flag) for flag in flags[:num_layers])
