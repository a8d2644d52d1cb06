"""Makes the vision tower of a Qwen2-VL or Qwen2.5-VL folder.

Called by `vision.loader`. Fails on a missing, misshaped or unknown tensor of the tower, naming it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from services.generator.images.qwen_recipe import QwenPreprocessing, read_qwen_preprocessing
from services.generator.vision.pixel_values import PixelScale
from services.generator.vision.qwen_config import QwenVisionConfig, read_qwen2_5_vision, read_qwen2_vision
from services.generator.vision.qwen_tower import NORM_EPS, Merger, QwenLayer, QwenTower, RmsNorm
from services.generator.vision.tower_reader import TowerReader, prefix_in
from shared.modeling.config import read_decoder_config
from shared.modeling.encoder_layers import LayerNorm
from shared.modeling.linear import LinearLayer, make_linear
from shared.modeling.weights import WeightFiles
from shared.settings.errors import ModelFolderError
from shared.settings.model_folder import read_json

_PREFIXES = ("model.visual.", "visual.")  # of the modules themselves, and of most files
_PATCHES = "patch_embed.proj.weight"


def load_qwen2_tower(folder: Path, dtype: torch.dtype, device: torch.device) -> QwenTower:
    """The tower of the Qwen2-VL in `folder`.

    Raises:
        ModelFolderError: something in its configuration is not supported; a tensor is missing, misshaped, quantised or unknown.
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
        reader = TowerReader(files, prefix_in(files, _PREFIXES, _PATCHES), dtype, device)
        patch_projection = _patch_projection(reader, config)
        layers = [_layer(reader, f"blocks.{index}.", config) for index in range(config.num_layers)]
        merger = _merger(reader, config)
        reader.refuse_unread()
    scale = PixelScale(preprocessing.scaling, device)
    return QwenTower(config, scale, patch_projection, layers, merger, num_bytes=reader.num_bytes)


def _check_agreement(config: QwenVisionConfig, preprocessing: QwenPreprocessing, decoder_width: int) -> None:
    if config.out_width != decoder_width:
        raise ModelFolderError(f"the vision tower's rows are {config.out_width} wide, the decoder's {decoder_width}")
    for name in ("patch_size", "temporal_patch_size", "merge_size"):
        ours, theirs = getattr(config, name), getattr(preprocessing, name)
        if ours != theirs:
            raise ModelFolderError(f"{name} is {theirs} in preprocessor_config.json and {ours} in config.json")


def _patch_projection(reader: TowerReader, config: QwenVisionConfig) -> LinearLayer:
    """A convolution over frames, rows and columns whose stride is its size, as a product over the patch's values."""
    patch_shape = (3, config.temporal_patch_size, config.patch_size, config.patch_size)
    return make_linear(reader.tensor(_PATCHES, config.width, *patch_shape).flatten(1), None)


def _layer(reader: TowerReader, prefix: str, config: QwenVisionConfig) -> QwenLayer:
    width, inner = config.width, config.inner_width
    up, down = (("gate_proj", "up_proj"), "down_proj") if config.is_gated else (("fc1",), "fc2")
    return QwenLayer(
        attention_norm=_norm(reader, f"{prefix}norm1", config),
        qkv=reader.linear([f"{prefix}attn.qkv"], width, 3 * width),
        attention_out=reader.linear([f"{prefix}attn.proj"], width, width),
        mlp_norm=_norm(reader, f"{prefix}norm2", config),
        up=reader.linear([f"{prefix}mlp.{name}" for name in up], width, inner),
        down=reader.linear([f"{prefix}mlp.{down}"], inner, width),
    )


def _merger(reader: TowerReader, config: QwenVisionConfig) -> Merger:
    block_width = config.width * config.merge_size**2
    return Merger(
        norm=_norm(reader, "merger.ln_q", config),
        first=reader.linear(["merger.mlp.0"], block_width, block_width),
        second=reader.linear(["merger.mlp.2"], block_width, config.out_width),
    )


def _norm(reader: TowerReader, name: str, config: QwenVisionConfig) -> LayerNorm | RmsNorm:
    if config.is_gated:
        return RmsNorm(reader.tensor(f"{name}.weight", config.width))
    return reader.norm(name, config.width, NORM_EPS)
