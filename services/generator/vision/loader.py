"""The table of vision encoders: architecture named in config.json → what loads its folder's tower.

Called by `engine.build`. A new family is one row here and one in `images.recipes`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from services.generator.vision.encoder import VisionEncoder
from services.generator.vision.llava import load_llava_encoder
from services.generator.vision.qwen_loader import load_qwen2_5_tower, load_qwen2_tower
from shared.modeling.vision_families import architecture_in
from shared.settings.model_folder import read_json

LOADERS: Mapping[str, Callable[[Path, torch.dtype, torch.device], VisionEncoder]] = {
    "LlavaForConditionalGeneration": load_llava_encoder,
    "Qwen2VLForConditionalGeneration": load_qwen2_tower,
    "Qwen2_5_VLForConditionalGeneration": load_qwen2_5_tower,
}


def load_vision_encoder(folder: Path, dtype: torch.dtype, device: torch.device) -> VisionEncoder | None:
    """The encoder of the model in `folder`; None for a model without a vision tower.

    Raises:
        ModelFolderError: config or weights of its tower are missing, of the wrong shape or not supported.
    """
    name = architecture_in(read_json(folder / "config.json"), LOADERS)
    return None if name is None else LOADERS[name](folder, dtype, device)
