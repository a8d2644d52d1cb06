"""The model and the adapters of the GPU benchmarks: the shape of Llama-3-8B with random weights, LoRA of rank 16 on everything.

Weights of the model are made in place when it is loaded; those of adapters are written to a folder in the layout of `peft`.
"""

import itertools
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from torch import Tensor

from services.generator.adapters.modules import group_shapes
from shared.modeling.config import read_decoder_config

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
TINY: dict[str, Any] = {
    **CONFIG,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
"""For trying the benchmarks themselves, without a GPU."""

NUM_WRITERS = 8


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """A folder without weights, whose tokenizer has a word for each id."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = {f"w{index} ": index for index in range(config["vocab_size"])}
    Tokenizer(models.WordLevel(words, unk_token="w0 ")).save(str(folder / "tokenizer.json"))
    return folder


def write_adapter(folder: Path, config: dict[str, Any], rank: int, seed: int) -> Path:
    """An adapter on all seven projections; 83.9 MB at rank 16 of the large shape."""
    folder.mkdir(parents=True)
    shapes = projections(config)
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": [name.rpartition(".")[2] for name in shapes],
    }
    (folder / "adapter_config.json").write_text(json.dumps(about), encoding="utf-8")
    save_file(_draw(config, shapes, rank, seed), folder / "adapter_model.safetensors")
    return folder


def _draw(config: dict[str, Any], shapes: Mapping[str, tuple[int, int]], rank: int, seed: int) -> dict[str, Tensor]:
    """All values at once, and so from the device to the host: hundreds of small draws and copies take longer than the files."""
    sizes = {
        f"base_model.model.model.layers.{layer}.{name}.{part}.weight": shape
        for layer in range(config["num_hidden_layers"])
        for name, (width, height) in shapes.items()
        for part, shape in (("lora_A", (rank, width)), ("lora_B", (height, rank)))
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    random = torch.Generator(device).manual_seed(seed)
    counts = [math.prod(shape) for shape in sizes.values()]
    values = torch.randn(sum(counts), generator=random, device=device, dtype=torch.bfloat16)
    for part, shape in zip(values.split(counts), sizes.values(), strict=True):
        part.mul_(0.3 * shape[1] ** -0.5)
    host = values.cpu().split(counts)
    return {name: part.view(shape) for part, (name, shape) in zip(host, sizes.items(), strict=True)}


def write_adapters(folder: Path, config: dict[str, Any], ranks: Mapping[str, int]) -> list[str]:
    """One for each name, of its rank, in a folder of that name; as values of `--lora`."""

    def write(seed: int, name: str) -> str:
        return f"{name}={write_adapter(folder / name, config, ranks[name], seed)}"

    with ThreadPoolExecutor(NUM_WRITERS) as pool:
        lora = list(pool.map(write, itertools.count(), ranks))
    torch.cuda.empty_cache()  # an engine of this process counts what is free
    return lora


def projections(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """(in, out) of each projection of a layer."""
    return {
        module: (group.in_features, size)
        for group in group_shapes(read_decoder_config(config)).values()
        for module, size in zip(group.modules, group.slice_sizes, strict=True)
    }
