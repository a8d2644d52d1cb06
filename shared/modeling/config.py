"""Reads a decoder's config.json, in both dialects that Hugging Face folders have, into one frozen description.

Used by the decoder's loader and by whoever needs a model's sizes. Refuses what would change the numbers and is not supported.
"""

from dataclasses import dataclass
from typing import Any

from shared.modeling.rope_config import RopeConfig, read_rope_config
from shared.settings.errors import ModelFolderError


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and switches of a Llama-class decoder.

    Attributes:
        context_len: longest sequence in tokens that the model was made for.
        dtype: name of the precision in which the folder's weights are stored.
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
    has_tied_head: bool
    has_qkv_bias: bool
    has_o_bias: bool
    has_mlp_bias: bool
    dtype: str

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads (or all value heads) together."""
        return self.num_kv_heads * self.head_dim


SUPPORTED_ARCHITECTURES = frozenset({"LlamaForCausalLM"})


def read_decoder_config(config: dict[str, Any]) -> DecoderConfig:
    """Understand the contents of a config.json.

    Raises:
        ModelFolderError: an architecture, activation, rope scaling or quantisation that is not supported, or a missing key.
    """
    architecture = _architecture(config)
    _refuse_unsupported(config)
    num_heads = _int(config, "num_attention_heads")
    hidden_size = _int(config, "hidden_size")
    head_dim = int(config.get("head_dim") or hidden_size // num_heads)
    max_positions = int(config.get("max_position_embeddings") or 2048)
    rope = read_rope_config(config, head_dim, 10000.0, max_positions)
    has_attention_bias = bool(config.get("attention_bias", False))
    return DecoderConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=_int(config, "intermediate_size"),
        num_layers=_int(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        vocab_size=_int(config, "vocab_size"),
        context_len=max(max_positions, rope.scaling.context_len or 0),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope,
        has_tied_head=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=has_attention_bias,
        has_o_bias=has_attention_bias,
        has_mlp_bias=bool(config.get("mlp_bias", False)),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures") or []
    known = [name for name in names if name in SUPPORTED_ARCHITECTURES]
    if not known:
        supported = ", ".join(sorted(SUPPORTED_ARCHITECTURES))
        raise ModelFolderError(f"architecture {', '.join(names) or '(none)'} is not supported; supported: {supported}")
    return str(known[0])


def _refuse_unsupported(config: dict[str, Any]) -> None:
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelFolderError(f"quantised weights ({method}) are not supported")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelFolderError(f"activation {config['hidden_act']} is not supported")


def _int(config: dict[str, Any], key: str) -> int:
    if not isinstance(config.get(key), int):
        raise ModelFolderError(f"config.json has no number {key}")
    return int(config[key])
