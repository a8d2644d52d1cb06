"""The vision encoder of a `LlavaForConditionalGeneration`: its folder's tower and projector, loaded and run.

Made through `vision.loader`. The image recipe decides sizes and numbers of rows; both read `images.llava_config`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from services.generator.core.images import PromptImage
from services.generator.images.clip_recipe import read_clip_preprocessing
from services.generator.images.llava_config import LlavaConfig, read_llava_config
from services.generator.vision.clip_tower import ClipLayer, ClipTower, PatchEmbeddings, Projector
from services.generator.vision.pixel_values import PixelScale
from services.generator.vision.tower_reader import TowerReader, prefix_in
from shared.modeling.config import read_decoder_config
from shared.modeling.encoder_layers import ACTIVATIONS
from shared.modeling.weights import WeightFiles
from shared.settings.model_folder import read_json

_TOWER_PREFIXES = tuple(
    f"{outer}vision_tower.{inner}" for inner in ("", "vision_model.") for outer in ("", "model.")
)  # with the level that towers had before transformers 5, and with that of LLaVA's modules since 4.52
_PROJECTOR_PREFIXES = ("multi_modal_projector.", "model.multi_modal_projector.")
_POSITIONS = "embeddings.position_embedding.weight"
_UNUSED = ("post_layernorm.", "head.", "embeddings.position_ids")
"""Parts of a tower that pool its rows into one vector, and a table of 0, 1, 2, …"""


class LlavaEncoder:
    """The `VisionEncoder` of a LLaVA model; see there. Images go through the tower side by side.

    Rounding may differ in the last digits with the number of images, as that of any product does.
    """

    def __init__(
        self, tower: ClipTower, projector: Projector, scale: PixelScale, config: LlavaConfig, *, num_bytes: int
    ) -> None:
        self.num_bytes = num_bytes
        self._tower = tower
        self._projector = projector
        self._scale = scale
        self._first_row = 1 if config.drops_first_row else 0
        self._dtype = tower.embeddings.positions.dtype

    @torch.inference_mode()
    def __call__(self, images: Sequence[PromptImage]) -> list[Tensor]:
        """[num_rows, hidden_size] of each."""
        if not images:
            return []
        values = self._scale([image.pixels for image in images]).to(self._dtype)
        return list(self._projector(self._tower(values)[:, self._first_row :]).unbind())


def load_llava_encoder(folder: Path, dtype: torch.dtype, device: torch.device) -> LlavaEncoder:
    """Tower and projector of the model in `folder`.

    Raises:
        ModelFolderError: something in its configuration is not supported; a tensor is missing, misshaped, quantised or unknown.
    """
    content = read_json(folder / "config.json")
    config, hidden_size = read_llava_config(content), read_decoder_config(content).hidden_size
    with WeightFiles(folder) as files:
        tower_reader = TowerReader(files, prefix_in(files, _TOWER_PREFIXES, _POSITIONS), dtype, device)
        tower = _tower(tower_reader, config)
        tower_reader.refuse_unread(lambda name: _is_unused(name, config))
        prefix = prefix_in(files, _PROJECTOR_PREFIXES, "linear_1.weight")
        projector_reader = TowerReader(files, prefix, dtype, device)
        projector = _projector(projector_reader, config, hidden_size)
        projector_reader.refuse_unread()
    scale = PixelScale(read_clip_preprocessing(folder).scaling, device)
    num_bytes = tower_reader.num_bytes + projector_reader.num_bytes
    return LlavaEncoder(tower, projector, scale, config, num_bytes=num_bytes)


def _is_unused(name: str, config: LlavaConfig) -> bool:
    layer = re.match(r"encoder\.layers\.(\d+)\.", name)
    if layer is not None:
        return config.num_layers <= int(layer[1]) < config.num_stored_layers
    return name.startswith(_UNUSED)


def _tower(reader: TowerReader, config: LlavaConfig) -> ClipTower:
    layers = [_layer(reader, f"encoder.layers.{index}.", config) for index in range(config.num_layers)]
    return ClipTower(_embeddings(reader, config), layers, config.feature_layers)


def _embeddings(reader: TowerReader, config: LlavaConfig) -> PatchEmbeddings:
    kind, width, patch = config.kind, config.hidden_size, config.patch_size
    return PatchEmbeddings(
        projection=reader.patch_projection("embeddings.patch_embedding", patch, width, has_bias=kind.has_patch_bias),
        class_row=reader.tensor("embeddings.class_embedding", width) if kind.has_class_row else None,
        positions=reader.tensor(_POSITIONS, config.num_positions, width),
        pre_norm=reader.norm("pre_layrnorm", width, config.norm_eps) if kind.has_pre_norm else None,
        patch_size=patch,
    )


def _layer(reader: TowerReader, prefix: str, config: LlavaConfig) -> ClipLayer:
    width, inner = config.hidden_size, config.intermediate_size
    return ClipLayer(
        attention_norm=reader.norm(f"{prefix}layer_norm1", width, config.norm_eps),
        qkv=reader.linear([f"{prefix}self_attn.{name}_proj" for name in "qkv"], width, width),
        attention_out=reader.linear([f"{prefix}self_attn.out_proj"], width, width),
        mlp_norm=reader.norm(f"{prefix}layer_norm2", width, config.norm_eps),
        up=reader.linear([f"{prefix}mlp.fc1"], width, inner),
        down=reader.linear([f"{prefix}mlp.fc2"], inner, width),
        activation=ACTIVATIONS[config.activation],
        num_heads=config.num_heads,
    )


def _projector(reader: TowerReader, config: LlavaConfig, hidden_size: int) -> Projector:
    num_features, has_bias = config.hidden_size * len(config.feature_layers), config.has_projector_bias
    return Projector(
        first=reader.linear(["linear_1"], num_features, hidden_size, has_bias=has_bias),
        activation=ACTIVATIONS[config.projector_act],
        second=reader.linear(["linear_2"], hidden_size, hidden_size, has_bias=has_bias),
    )
