"""Adapters made by `peft` on tiny random models, and what `peft` says with them."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from services.generator.adapters.modules import AdapterTarget, GroupKey, group_shapes, outer_shapes
from services.generator.adapters.packed import PackedAdapter
from shared.modeling.config import read_decoder_config
from shared.modeling.decoder import DecoderWeights
from shared.modeling.decoder_loader import load_decoder
from tests.shared.modeling.tiny_decoder import save_tiny

CPU = torch.device("cpu")
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def base(request, tmp_path_factory) -> Path:
    """A tiny model of each of two families, the second with biases."""
    folder = tmp_path_factory.mktemp(f"base-{request.param}")
    save_tiny(folder, request.param, eos_token_id=None)
    return folder


@pytest.fixture(scope="session")
def tied(tmp_path_factory) -> Path:
    """A tiny model whose head is its embedding."""
    return save_tiny(tmp_path_factory.mktemp("tied"), "llama", tie_word_embeddings=True, eos_token_id=None)


def make_adapter(base: Path, folder: Path, *, seed: int = 0, **options) -> Path:
    """Save an adapter whose B is not zero; its effect is large enough to change tokens."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ALL, "init_lora_weights": False, **options})
    get_peft_model(model, config).save_pretrained(folder)
    return folder


def target_of(base: Path, dtype: torch.dtype = torch.float32) -> AdapterTarget:
    """A bank with room for everything, of ranks up to 8."""
    config = read_decoder_config(json.loads((base / "config.json").read_text()))
    return AdapterTarget(
        base_model="base",
        num_layers=config.num_layers,
        shapes=group_shapes(config),
        max_rank=8,
        dtype=dtype,
        outer=outer_shapes(config),
        names=config.tensor_names,
        foreign=() if config.vision is None else config.vision.foreign,
        base_folder=base,
    )


def weights_of(target: AdapterTarget, device: torch.device = CPU) -> DecoderWeights:
    """The base's own, in the bank's dtype."""
    folder = target.base_folder
    config = read_decoder_config(json.loads((folder / "config.json").read_text()))
    return load_decoder(folder, config, target.dtype, device)


def groups_of(adapter: PackedAdapter, target: AdapterTarget) -> dict[GroupKey, SimpleNamespace]:
    """What a packed adapter changes, taken apart again: a [slices, R, in], b [out, R], ranks and scales [slices]."""
    groups, start = {}, 0
    for name, stack in target.banked_stacks().items():
        packed = adapter.stacks.get(name)
        for level, key in enumerate(stack.keys):
            entries = adapter.table[:, start : start + len(stack.shape.modules)]
            start += len(stack.shape.modules)
            if entries[0].any():
                a, b = packed.a[level - packed.first], packed.b[level - packed.first]
                groups[key] = SimpleNamespace(a=a, b=b, ranks=entries[0], scales=entries[1].view(torch.float32))
    assert start == adapter.table.shape[1]
    return groups


def reference_model(base: Path, adapter: Path | None, dtype: str = "float32") -> torch.nn.Module:
    """The base model by the reference libraries, with the adapter on it, in the same precision, if there is one."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    return model.eval()


def reference_logits(base: Path, adapter: Path | None, tokens: list[int], dtype: str = "float32") -> torch.Tensor:
    """[T, V] of the reference library."""
    with torch.inference_mode():
        return reference_model(base, adapter, dtype)(torch.tensor([tokens])).logits[0]


def reference_tokens(base: Path, adapter: Path | None, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation by the reference library."""
    model, tokens = reference_model(base, adapter), list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]
