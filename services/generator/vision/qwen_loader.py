"""Puts the tensors of a Qwen2-VL or Qwen2.5-VL folder where the tower wants them.

Called by `vision.loader`. Memory is made once on the device; each tensor of the files is copied straight to its place. Fails on a
missing, misshaped or unknown tensor of the tower, naming it, before any of that memory is made.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.generator.images.qwen_recipe import QwenPreprocessing, read_qwen_preprocessing
from services.generator.vision.qwen_config import QwenVisionConfig, read_qwen2_5_vision, read_qwen2_vision
from services.generator.vision.qwen_tower import Norm, QwenTower, TowerLayer, TowerWeights
from shared.modeling.config import read_decoder_config
from shared.modeling.decoder import Linear
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

_PREFIXES = ("model.visual.", "visual.")  # transformers' since 4.52, and the one before, which hub folders have


def load_qwen2_tower(folder: Path, dtype: torch.dtype, device: torch.device) -> QwenTower:
    """The tower of the Qwen2-VL in `folder`.

    Raises:
        ModelFolderError: something is missing, contradicts the config or is not supported.
    """
    return _load(folder, read_qwen2_vision, dtype, device)


def load_qwen2_5_tower(folder: Path, dtype: torch.dtype, device: torch.device) -> QwenTower:
    """The tower of the Qwen2.5-VL in `folder`; errors as above."""
    return _load(folder, read_qwen2_5_vision, dtype, device)


def _load(
    folder: Path,
    read_config: Callable[[Mapping[str, Any]], QwenVisionConfig],
    dtype: torch.dtype,
    device: torch.device,
) -> QwenTower:
    content = read_json(folder / "config.json")
    config, preprocessing = read_config(content), read_qwen_preprocessing(folder)
    _check_agreement(config, preprocessing, read_decoder_config(content).hidden_size)
    with WeightFiles(folder) as files:
        prefix = next((each for each in _PREFIXES if f"{each}patch_embed.proj.weight" in files), _PREFIXES[0])
        planned = dict(_places(_allocate(config, dtype, torch.device("meta")), config, prefix))
        _check(files, planned, prefix)
        weights = _allocate(config, dtype, device)
        places = dict(_places(weights, config, prefix))
        for name, tensor in places.items():
            files.copy(name, tensor)
    return QwenTower(config, preprocessing, weights, sum(tensor.nbytes for tensor in places.values()))


def _check_agreement(config: QwenVisionConfig, preprocessing: QwenPreprocessing, decoder_width: int) -> None:
    if config.out_width != decoder_width:
        raise ModelFolderError(f"the vision tower's rows are {config.out_width} wide, the decoder's {decoder_width}")
    for name in ("patch_size", "temporal_patch_size", "merge_size"):
        ours, theirs = getattr(config, name), getattr(preprocessing, name)
        if ours != theirs:
            raise ModelFolderError(f"{name} is {theirs} in preprocessor_config.json and {ours} in config.json")


def _check(files: WeightFiles, places: Mapping[str, Tensor], prefix: str) -> None:
    files.check({name: tensor.shape for name, tensor in places.items()})
    unknown = sorted(name for name in files.names() if name.startswith(prefix) and name not in places)
    if unknown:
        raise ModelFolderError(f"{len(unknown)} tensors are not part of the vision tower, such as {unknown[0]}")


def _allocate(config: QwenVisionConfig, dtype: torch.dtype, device: torch.device) -> TowerWeights:
    """All tensors of the tower, not filled yet."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def linear(rows: int, width: int) -> Linear:
        return Linear(empty(rows, width), empty(rows))

    def norm() -> Norm:
        return Norm(empty(width), None if config.is_gated else empty(width))

    width, inner = config.width, config.inner_width
    block_width = width * config.merge_size**2
    layers = [
        TowerLayer(
            attention_norm=norm(),
            qkv=linear(3 * width, width),
            o=linear(width, width),
            mlp_norm=norm(),
            up=linear(2 * inner if config.is_gated else inner, width),
            down=linear(width, inner),
        )
        for _ in range(config.num_layers)
    ]
    channels, frames, height, patch_width = config.patch_shape
    patch = empty(width, channels * frames * height * patch_width)
    return TowerWeights(patch, layers, norm(), linear(block_width, block_width), linear(config.out_width, block_width))


def _places(weights: TowerWeights, config: QwenVisionConfig, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Names in the files, and the tensor of the tower, or the part of one, that each goes to."""
    yield f"{prefix}patch_embed.proj.weight", weights.patch.view(config.width, *config.patch_shape)
    for index, layer in enumerate(weights.layers):
        yield from _layer_places(layer, config, f"{prefix}blocks.{index}.")
    yield from _norm_places(weights.merger_norm, f"{prefix}merger.ln_q")
    yield from _linear_places(weights.merger_up, f"{prefix}merger.mlp.0")
    yield from _linear_places(weights.merger_down, f"{prefix}merger.mlp.2")


def _layer_places(layer: TowerLayer, config: QwenVisionConfig, prefix: str) -> Iterator[tuple[str, Tensor]]:
    yield from _norm_places(layer.attention_norm, f"{prefix}norm1")
    yield from _linear_places(layer.qkv, f"{prefix}attn.qkv")
    yield from _linear_places(layer.o, f"{prefix}attn.proj")
    yield from _norm_places(layer.mlp_norm, f"{prefix}norm2")
    up, down = (("gate_proj", "up_proj"), "down_proj") if config.is_gated else (("fc1",), "fc2")
    yield from _linear_places(layer.up, *(f"{prefix}mlp.{name}" for name in up))
    yield from _linear_places(layer.down, f"{prefix}mlp.{down}")


def _norm_places(norm: Norm, name: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", norm.weight
    if norm.bias is not None:
        yield f"{name}.bias", norm.bias


def _linear_places(linear: Linear, *names: str) -> Iterator[tuple[str, Tensor]]:
    """The projections `names`, all of one size, lie one below the other in `linear`."""
    for kind, tensor in (("weight", linear.weight), ("bias", linear.bias)):
        if tensor is not None:
            yield from ((f"{name}.{kind}", part) for name, part in zip(names, tensor.chunk(len(names)), strict=True))
