"""The table of decoder families: architecture named in config.json → what sets it apart from the others.

Read by `config` and `vision_families`; what a folder's config.json says on top of it ends up in `DecoderConfig`. A new family is
one row here. Where a key is absent from a config.json it means what it means in transformers' configuration class of the family.
Must not import torch: the API process reads config.json by it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.modeling.config_reader import ConfigReader
from shared.settings.errors import ModelFolderError

Sections = tuple[int, int, int]
"""How many pairs of a head turn by the position in time, height and width."""

Windows = tuple[int | None, ...]
"""For each layer, how many positions a token sees, its own included; None is all before it."""


def no_windows(config: ConfigReader, num_layers: int) -> Windows:
    """Every layer sees everything; a config that says otherwise is refused."""
    if config.optional_int("sliding_window") is not None and config.boolean("use_sliding_window", default=True):
        raise ModelFolderError("sliding_window is not supported for this architecture")
    if any(kind != "full_attention" for kind in config.value("layer_types") or ()):
        raise ModelFolderError("layer_types other than full_attention are not supported for this architecture")
    return (None,) * num_layers


def same_window(config: ConfigReader, num_layers: int) -> Windows:
    """`sliding_window` holds for all layers; null is none. (Mistral 7B, arXiv:2310.06825, §2.)"""
    for key in ("layer_types", "use_sliding_window"):  # of other families; what they would mean here is anyone's guess
        if config.value(key) is not None:
            raise ModelFolderError(f"{key} is not supported for this architecture")
    return (config.optional_int("sliding_window"),) * num_layers


def windows_by_layer(config: ConfigReader, num_layers: int) -> Windows:
    """With `use_sliding_window`, the layers that `layer_types` names, or else those from `max_window_layers` on, have a window.

    Source: Qwen2 Technical Report, arXiv:2407.10671, and transformers' Qwen2Config.
    """
    has_windows = config.boolean("use_sliding_window")
    window = config.optional_int("sliding_window") if has_windows else None
    kinds, first = config.value("layer_types"), config.value("max_window_layers")
    if kinds is not None:
        return _windows_by_kind(kinds, window, num_layers)
    if window is None:
        return (None,) * num_layers
    if type(first) is not int:
        raise ModelFolderError("use_sliding_window without layer_types or max_window_layers is not supported")
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _windows_by_kind(kinds: Any, window: int | None, num_layers: int) -> Windows:
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ModelFolderError(f"layer_types does not name the kind of each of {num_layers} layers")
    table = {"full_attention": None, "sliding_attention": window}
    unknown = [kind for kind in kinds if kind not in table]
    if unknown:
        raise ModelFolderError(f"layer_types: {unknown[0]} is not supported")
    if window is None and "sliding_attention" in kinds:
        raise ModelFolderError("layer_types has sliding_attention, but use_sliding_window or sliding_window is not set")
    return tuple(table[kind] for kind in kinds)


SIZE_KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class Family:
    """What sets a family apart.

    Attributes:
        model_type: what a config.json nested in another names it by.
        sizes: of `SIZE_KEYS`, where a nested config.json leaves them out; one of its own never does.
        qkv_bias: whether q, k and v have biases, or the key of config.json that says so.
        o_bias: likewise for the projection after attention.
        mlp_bias: likewise for gate, up and down.
        has_qk_norm: queries and keys go through an RMSNorm per head before they are rotated.
        has_unrotated_layers: `no_rope_layers` says which layers rotate nothing.
        windows: understands the keys about sliding windows.
        default_theta: base of the rotary frequencies where config.json has none.
        default_sections: what `mrope_section` means where it is absent; None: the family rotates by one position.
        defaults: what else absent keys mean.
    """

    model_type: str
    sizes: tuple[int, int, int, int, int]
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    has_qk_norm: bool = False
    has_unrotated_layers: bool = False
    windows: Callable[[ConfigReader, int], Windows] = no_windows
    default_theta: float = 10_000.0
    default_sections: Sections | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: Mapping[str, Family] = {
    # Llama 2 and 3 (arXiv:2307.09288, 2407.21783), and what has their architecture: SmolLM and SmolLM2, TinyLlama, Yi.
    "LlamaForCausalLM": Family(
        model_type="llama",
        sizes=(4096, 11_008, 32, 32, 32_000),
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias="mlp_bias",
        defaults={"max_position_embeddings": 2048},
    ),
    # Mistral 7B, arXiv:2310.06825.
    "MistralForCausalLM": Family(
        model_type="mistral",
        sizes=(4096, 14_336, 32, 32, 32_000),
        windows=same_window,
        defaults={"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
    ),
    # Qwen2 and Qwen2.5, arXiv:2407.10671, 2412.15115.
    "Qwen2ForCausalLM": Family(
        model_type="qwen2",
        sizes=(4096, 22_016, 32, 32, 151_936),
        qkv_bias=True,
        windows=windows_by_layer,
        defaults={
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 32,
            "sliding_window": 4096,
            "max_window_layers": 28,
        },
    ),
    # The decoder inside of Qwen2-VL and Qwen2.5-VL, arXiv:2409.12191, 2502.13923.
    "Qwen2VLTextModel": Family(
        model_type="qwen2_vl_text",
        sizes=(8192, 29_568, 80, 64, 152_064),
        qkv_bias=True,
        windows=windows_by_layer,
        default_theta=1_000_000.0,
        default_sections=(16, 24, 24),
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "max_window_layers": 80,
        },
    ),
    # Qwen3, arXiv:2505.09388, the dense models.
    "Qwen3ForCausalLM": Family(
        model_type="qwen3",
        sizes=(4096, 22_016, 32, 32, 151_936),
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        has_qk_norm=True,
        windows=windows_by_layer,
        defaults={
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "sliding_window": 4096,
            "max_window_layers": 28,
        },
    ),
    # SmolLM3: every fourth layer without rotation, "RoPE to NoPE and Back Again", arXiv:2501.18795.
    "SmolLM3ForCausalLM": Family(
        model_type="smollm3",
        sizes=(2048, 11_008, 36, 16, 128_256),
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias="mlp_bias",
        has_unrotated_layers=True,
        windows=windows_by_layer,
        default_theta=2_000_000.0,
        defaults={
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 4,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
    ),
}
