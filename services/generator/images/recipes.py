"""The table of image recipes: architecture named in config.json → what reads its folder.

Called by `app.py` at start. A new family is one row here and one in `vision.loader`. Must not import torch.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from services.generator.images.clip_recipe import read_llava_recipe
from services.generator.images.qwen_recipe import read_qwen_recipe
from services.generator.images.recipe import ImageRecipe
from shared.modeling.vision_families import architecture_in
from shared.settings.model_folder import read_json

RECIPES: Mapping[str, Callable[[Path], ImageRecipe]] = {
    "LlavaForConditionalGeneration": read_llava_recipe,
    "Qwen2VLForConditionalGeneration": read_qwen_recipe,
    "Qwen2_5_VLForConditionalGeneration": read_qwen_recipe,
}


def read_image_recipe(folder: Path) -> ImageRecipe | None:
    """What the model in `folder` does to an image first; None for a model without a vision tower.

    Raises:
        ModelFolderError: its preprocessing is not supported; the message names the key.
    """
    name = architecture_in(read_json(folder / "config.json"), RECIPES)
    return None if name is None else RECIPES[name](folder)
