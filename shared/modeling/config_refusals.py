"""Keys of config.json that change a decoder's numbers and that no supported family has: refused unless they say nothing.

Called by `config`. An allow-list of every harmless key would refuse good folders; this is the list of the known harmful ones.
"""

from collections.abc import Mapping
from typing import Any

from shared.settings.errors import ModelFolderError

_ABSENT = (None, False)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # Scaled embeddings, residuals, attention or logits: Granite, MiniCPM, Cohere, Gemma, models with μP.
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"), (None, 1)),
    **dict.fromkeys(("scale_emb", "mup_width_multiplier", "lm_head_multiplier", "key_multiplier"), (None, 1)),
    **dict.fromkeys(("attention_multiplier", "attention_scale", "query_pre_attn_scalar", "scale_depth"), (None,)),
    **dict.fromkeys(("dim_model_base", "mup", "use_mup", "mup_attn_multiplier"), _ABSENT),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "logit_soft_cap", "clip_qkv"), _ABSENT),
    # Other norms, gates and paths round the layers.
    **dict.fromkeys(("qk_norm", "use_qk_norm", "qk_layernorm", "use_qkv_norm"), _ABSENT),
    **dict.fromkeys(("attn_output_gate", "use_attn_gate", "attention_sinks", "use_sinks"), _ABSENT),
    **dict.fromkeys(("parallel_attn", "parallel_residual", "use_parallel_residual"), _ABSENT),
    **dict.fromkeys(("attn_temperature_tuning", "attention_chunk_size", "alibi"), _ABSENT),
    "is_causal": (None, True),
    "use_bidirectional_attention": _ABSENT,
    "is_encoder_decoder": _ABSENT,
    "add_cross_attention": _ABSENT,
    # Mixtures of experts, multi-head latent attention.
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), (None, 0, 1)),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), (None,)),
}
_UNROTATED_KEYS = ("no_rope_layers", "no_rope_layer_interval")
_ACTIVATIONS = ("silu", "swish")  # two names of one function


def refuse_unsupported(config: Mapping[str, Any], *, has_unrotated_layers: bool) -> None:
    """Check the keys that a reader of sizes would not look at.

    Args:
        has_unrotated_layers: the family knows layers without rotary embedding.
    Raises:
        ModelFolderError: one of them is set; the message names it.
    """
    _refuse_quantisation(config)
    for key in ("hidden_act", "hidden_activation"):
        if config.get(key) is not None and config[key] not in _ACTIVATIONS:
            raise ModelFolderError(f"{key} {config[key]} is not supported; supported: {', '.join(_ACTIVATIONS)}")
    for key, neutral in _NEUTRAL.items():
        if config.get(key) not in neutral:
            raise ModelFolderError(f"config.json: {key} {config[key]} is not supported")
    for key in _UNROTATED_KEYS:
        if not has_unrotated_layers and config.get(key) is not None:
            raise ModelFolderError(f"config.json: {key} is not supported for this architecture")


def _refuse_quantisation(config: Mapping[str, Any]) -> None:
    for key in ("quantization_config", "compression_config"):
        if config.get(key):
            method = config[key].get("quant_method", "unknown") if isinstance(config[key], dict) else "unknown"
            raise ModelFolderError(f"quantised weights ({key}, method {method}) are not supported")
