"""Tiny random checkpoints of every supported family, made by transformers; nothing in them is left at a value that hides a slip.

Used by the tests of the decoder's loader and of the generator. Each entry is the change from `TINY` that one case is about.
"""

from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

TINY = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # so that the two best logits are apart
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM),
}


def scaled(rope_type, **parameters):
    """Parameters of a scaled rotary embedding."""
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, **parameters}}


FAMILIES = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_one_kv_head": ("llama", {"num_key_value_heads": 1}),
    "llama_all_kv_heads": ("llama", {"num_key_value_heads": 4}),
    "llama_wide_heads": ("llama", {"head_dim": 32}),
    "llama_odd_heads": ("llama", {"head_dim": 10}),
    "llama_other_theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama_other_eps": ("llama", {"rms_norm_eps": 1e-2}),
    "llama_linear": ("llama", scaled("linear", factor=4.0)),
    "llama_llama3": (
        "llama",
        scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "llama_yarn": ("llama", scaled("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama_dynamic": ("llama", scaled("dynamic", factor=4.0)),
    "llama_longrope": (
        "llama",
        scaled(
            "longrope",
            short_factor=[1.0, 1.1, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0],
            long_factor=[9.0] * 8,
            factor=4.0,
            original_max_position_embeddings=256,
        ),
    ),
    "mistral_window": ("mistral", {"sliding_window": 13}),
    "mistral_without_window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"sliding_window": 13}),
    "qwen2_tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_windows_above": (
        "qwen2",
        {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3_biases": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "qwen3_alternating": (
        "qwen3",
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 13,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
}
"""Case → (family, what differs from TINY)."""


def save_tiny(folder: Path, family: str, **changes) -> Path:
    """Write a random model of `family`; the weights of its norms and its biases are random too."""
    make_config, make_model = CLASSES[family]
    torch.manual_seed(0)
    model = make_model(make_config(**{**TINY, **changes}))
    leave_nothing_at_its_default(model)
    model.save_pretrained(folder)
    return folder


def leave_nothing_at_its_default(model: torch.nn.Module) -> None:
    """Random norms and biases, which are made as ones and zeros and would hide a forgotten one."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
