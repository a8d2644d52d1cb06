"""Reads ModernBERT's config.json, in the dialects before and after transformers 5, into one frozen description.

Used by `modernbert_loader`. Refuses what would change the numbers and is not supported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.modeling.config_reader import ConfigReader
from shared.modeling.encoder_layers import ACTIVATIONS
from shared.modeling.rope_config import RopeConfig, read_rope_config
from shared.settings.errors import ModelFolderError

_KINDS = {"full_attention": False, "sliding_attention": True}


@dataclass(frozen=True)
class ModernBertConfig:
    """The part of config.json that shapes the encoder.

    Attributes:
        is_local: [L] whether a layer sees only the tokens at most `half_window` places away.
        ropes: rotary embedding of the layers that see everything, and of those with a window.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    norm_eps: float
    activation: str
    has_norm_bias: bool
    has_attention_bias: bool
    has_mlp_bias: bool
    half_window: int
    is_local: tuple[bool, ...]
    ropes: tuple[RopeConfig, RopeConfig]

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads


def read_modernbert_config(config: Mapping[str, Any]) -> ModernBertConfig:
    """Understand the contents of a config.json.

    Raises:
        ModelFolderError: a value is missing, wrong or asks for what is not supported.
    """
    reader = ConfigReader(config, "config.json", {"hidden_activation": "gelu", "local_attention": 128})
    hidden_size, num_heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise ModelFolderError("config.json: hidden_size is no multiple of num_attention_heads")
    activation = reader.value("hidden_activation")
    if activation not in ACTIVATIONS:
        raise ModelFolderError(f"config.json: hidden_activation {activation!r} is not supported")
    max_positions = reader.integer("max_position_embeddings")
    norm_eps = reader.optional_number("norm_eps")
    return ModernBertConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        intermediate_size=reader.integer("intermediate_size"),
        max_positions=max_positions,
        norm_eps=1e-5 if norm_eps is None else norm_eps,
        activation=activation,
        has_norm_bias=reader.boolean("norm_bias"),
        has_attention_bias=reader.boolean("attention_bias"),
        has_mlp_bias=reader.boolean("mlp_bias"),
        half_window=reader.integer("local_attention") // 2,
        is_local=_local_layers(reader),
        ropes=(
            _rope(config, "full_attention", "global_rope_theta", 160_000.0, hidden_size // num_heads, max_positions),
            _rope(config, "sliding_attention", "local_rope_theta", 10_000.0, hidden_size // num_heads, max_positions),
        ),
    )


def _local_layers(reader: ConfigReader) -> tuple[bool, ...]:
    num_layers = reader.integer("num_hidden_layers")
    kinds = reader.value("layer_types")
    if kinds is None:
        interval = reader.optional_int("global_attn_every_n_layers") or 3
        return tuple(layer % interval != 0 for layer in range(num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= set(_KINDS):
        raise ModelFolderError(f"layer_types does not name a supported kind for each of {num_layers} layers")
    return tuple(_KINDS[kind] for kind in kinds)


def _rope(
    config: Mapping[str, Any], kind: str, old_key: str, default_theta: float, head_dim: int, max_positions: int
) -> RopeConfig:
    """Parameters by kind of layer (`rope_parameters`), or a base for each kind under a key of its own."""
    declared = (config.get("rope_parameters") or {}).get(kind) or {}
    theta = config.get(old_key) or default_theta
    rope = read_rope_config({"rope_parameters": {"rope_theta": theta, **declared}}, head_dim, theta, max_positions)
    if rope.kind != "default" or config.get("rope_scaling"):
        raise ModelFolderError(f"config.json: rope scaling of {kind} layers is not supported for ModernBERT")
    return rope
