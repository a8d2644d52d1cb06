"""The tokens of a benchmark against a plain forward pass: no cache, no kernels, each sequence alone, adapters as (B A x) s."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from services.generator.adapters.modules import group_shapes
from shared.modeling.config import DecoderConfig, read_decoder_config
from shared.modeling.decoder import DecoderLayer, DecoderOps, Linear, decoder_forward, norm_heads
from shared.modeling.decoder_loader import make_random_decoder
from shared.modeling.device import choose_device
from shared.modeling.rope import apply_rope, rope_table
from shared.settings.model_folder import read_json

NEAR = 0.25
"""A token may be behind the best by this much, as a share of the standard deviation of the logits: bf16 cannot tell them apart."""


class PlainOps(DecoderOps):
    """One whole sequence.

    Args:
        adapter: tensors of a `peft` folder, or None.
    """

    def __init__(self, config: DecoderConfig, rotary: Tensor, adapter: dict[str, Tensor] | None, scale: float) -> None:
        self._config = config
        self._rotary = rotary
        self._adapter = adapter
        self._scale = scale
        self._shapes = group_shapes(config)

    def project(self, layer: int, group: str, linear: Linear, x: Tensor) -> Tensor:
        """Base and adapter, module by module."""
        y = functional.linear(x, linear.weight, linear.bias)
        if self._adapter is None:
            return y
        parts = []
        for module in self._shapes[group].modules:
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            a, b = (self._adapter[f"{prefix}.lora_{part}.weight"].float() for part in "AB")
            parts.append(x.float() @ a.T @ b.T * self._scale)
        return (y.float() + torch.cat(parts, dim=1)).to(y.dtype)

    def attend(self, index: int, layer: DecoderLayer, qkv: Tensor) -> Tensor:
        """Causal attention over the sequence."""
        config = self._config
        heads = norm_heads(qkv, layer, config).view(len(qkv), -1, config.head_dim)
        q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        q, k = apply_rope(q, self._rotary), apply_rope(k, self._rotary)
        out = functional.scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in (q, k, v)), is_causal=True, enable_gqa=True
        )
        return out[0].transpose(0, 1).flatten(1)


class PlainModel:
    """The model of a benchmark's folder once more; beside it stand the folders of its adapters, by their names.

    Args:
        scale: of all adapters.
    """

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._scale = scale
        self._config = read_decoder_config(read_json(folder / "model" / "config.json"))
        self._weights = make_random_decoder(self._config, torch.bfloat16, choose_device("auto"))

    @torch.inference_mode()
    def num_wrong(self, prompt: Sequence[int], output: Sequence[int], adapter: str | None) -> int:
        """Tokens that greedy decoding would not have chosen."""
        weights, device = self._weights, self._weights.embedding.device
        ids = torch.tensor([*prompt, *output[:-1]], device=device)
        rotary = rope_table(self._config.rope, len(ids), weights.embedding.dtype, device)
        ops = PlainOps(self._config, rotary, self._tensors(adapter), self._scale)
        hidden = decoder_forward(weights, self._config, ops, ids)
        logits = functional.linear(hidden[len(prompt) - 1 :], weights.head).float()
        chosen = logits.gather(1, torch.tensor(output, device=device)[:, None])[:, 0]
        return int((logits.amax(dim=1) - chosen > NEAR * logits.std(dim=1)).sum())

    def _tensors(self, adapter: str | None) -> dict[str, Tensor] | None:
        if adapter is None:
            return None
        file = self._folder / adapter / "adapter_model.safetensors"
        return load_file(file, device=str(self._weights.embedding.device))
