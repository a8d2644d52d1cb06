"""The model and the adapters of the GPU benchmarks: the shape of Llama-3-8B with random weights, LoRA of rank 16 on everything.

Weights of the model are made in place when it is loaded; those of adapters are written to a folder in the layout of `peft`.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

VOCAB_SIZE = 128_256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
HIDDEN, INNER, KV = 4096, 14336, 1024
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, KV),
    "self_attn.v_proj": (HIDDEN, KV),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (HIDDEN, INNER),
    "mlp.up_proj": (HIDDEN, INNER),
    "mlp.down_proj": (INNER, HIDDEN),
}
"""(in, out) of each projection."""


def write_model(folder: Path) -> Path:
    """A folder without weights, whose tokenizer has a word for each id."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    words = {f"w{index} ": index for index in range(VOCAB_SIZE)}
    Tokenizer(models.WordLevel(words, unk_token="w0 ")).save(str(folder / "tokenizer.json"))
    return folder


def write_adapter(folder: Path, rank: int, seed: int) -> Path:
    """An adapter on all seven projections; 83.9 MB at rank 16."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": [name.rpartition(".")[2] for name in SHAPES],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    random = torch.Generator("cuda").manual_seed(seed)
    tensors = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, (width, height) in SHAPES.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            for part, shape in (("lora_A", (rank, width)), ("lora_B", (height, rank))):
                values = torch.randn(shape, generator=random, device="cuda") * 0.3 * shape[1] ** -0.5
                tensors[f"{prefix}.{part}.weight"] = values.bfloat16().cpu()
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
